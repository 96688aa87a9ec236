// SPDX-License-Identifier: Apache-2.0
// The forward: partials of each leaf and their merge.
#pragma once

#include "pack_cpu.h"

namespace rlk {
namespace {

// Statistics of one vector of rows over a leaf, from its logits, whose maximum they are about. Sums
// in the order of reduce_leaf's.
RLK_INLINE LeafStats leaf_stats(const float* z, const LogpLeaf& leaf, VecF max) {
  const VecF base = base_of(max), none = splat(0.0f);
  VecF sum[4] = {none, none, none, none}, squares[4] = {none, none, none, none};
  VecI argmax = splat_int(kNoColumn);
  const auto add = [&](Int64 v, int chain) __attribute__((always_inline)) {
    const VecF x = load(z + v * kPanel), e = exp(x - base);
    sum[chain] = sum[chain] + x;
    squares[chain] = fma(e, e, squares[chain]);
    const VecI found = splat_int(leaf.begin + static_cast<Int32>(v));
    const Mask is_first = (x == max) & (argmax == splat_int(kNoColumn));
    argmax = is_first ? found : argmax;
  };
  const Int64 whole = leaf.cols & ~Int64{3};
#pragma clang loop unroll(disable)
  for (Int64 v = 0; v < whole; v += 4) {
#pragma clang loop unroll(full)
    for (int u = 0; u < 4; ++u) add(v + u, u);
  }
#pragma clang loop unroll(disable)
  for (Int64 v = whole; v < leaf.cols; ++v) add(v, 0);
  return {(sum[0] + sum[1]) + (sum[2] + sum[3]),
          (squares[0] + squares[1]) + (squares[2] + squares[3]), argmax};
}

// Logits of one vector of rows over a leaf: z replaces the dot products in c; gives the leaf's
// partial at index `at`. Order: maximum, then the terms of each sum in four chains (column % 4),
// (0 + 1) + (2 + 3).
RLK_INLINE void reduce_leaf(const Args& a, float* c, const float* bias, const LogpLeaf& leaf,
                            VecF scale, Int64 at) {
  const Int64 cols = leaf.cols;
  const VecF max = logits_of_leaf(a, c, bias, cols, scale);
  const VecF base = base_of(max);
  VecF sum[4] = {splat(0.0f), splat(0.0f), splat(0.0f), splat(0.0f)};
  VecF moment[4] = {splat(0.0f), splat(0.0f), splat(0.0f), splat(0.0f)};
  const bool entropy = has_entropy(a);
  const auto add = [&](Int64 v, int chain) __attribute__((always_inline)) {
    const VecF d = load(c + v * kPanel) - base;
    const VecF e = exp(d);
    sum[chain] = sum[chain] + e;
    if (entropy) moment[chain] = fma(e, exponent_factor(d), moment[chain]);
  };
  const Int64 whole = cols & ~Int64{3};
#pragma clang loop unroll(disable)
  for (Int64 v = 0; v < whole; v += 4) {
#pragma clang loop unroll(full)
    for (int u = 0; u < 4; ++u) add(v + u, u);
  }
#pragma clang loop unroll(disable)
  for (Int64 v = whole; v < cols; ++v) add(v, 0);
  store(a.partial_max + at, max);
  store(a.partial_sum + at, (sum[0] + sum[1]) + (sum[2] + sum[3]));
  if (entropy) store(a.partial_moment + at, (moment[0] + moment[1]) + (moment[2] + moment[3]));
  if (has_stats(a)) store_stats(a, at, leaf_stats(c, leaf, max));
}

// Column of `kept` where a leaf begins, or -1: it is not kept.
RLK_INLINE Int64 kept_column(const Args& a, Int64 leaf, const LogpLeaf& of_leaf) {
  if (!a.kept) return -1;
  const Int64 segment = leaf / leaves_of(a).of_segment();
  if (segment >= a.kept_segments) return -1;
  return segment * a.kept_pitch + of_leaf.begin - segment * leaves_of(a).segment();
}

// The logits of a panel of rows of the strip over a leaf.
RLK_INLINE void keep_leaf(const Args& a, Int64 row, Int64 col, const float* c, Int64 cols) {
  const KeptPanel to = kept_panel(a, a.first_row + row, col);
  if (to.width == kPanel) {
#pragma clang loop unroll(disable)
    for (Int64 i = 0; i < cols * kPanel; i += kLanes) store_unaligned(to.data + i, load(c + i));
    return;
  }
#pragma clang loop unroll(disable)
  for (Int64 v = 0; v < cols; ++v) {
#pragma clang loop unroll(disable)
    for (Int64 i = 0; i < to.width; i += kLanes) {
      store_some(to.data + v * to.width + i, load(c + v * kPanel + i), to.width - i);
    }
  }
}

}  // namespace

extern "C" void rlk_linear_logp_fwd_pack(const Args* args, Int64 begin, Int64 end, void*) {
  const Args& a = *args;
#pragma clang loop unroll(disable)
  for (Int64 item = begin; item < end; ++item) {
    const Int64 row = item * kPanel;
    pack_row_values(a, row);
    pack_hidden_by_row(a, row, a.hidden_by_row + row * dim(a));
  }
}

extern "C" void rlk_linear_logp_fwd_main(const Args* args, Int64 begin, Int64 end, void* scratch) {
  const Args& a = *args;
  float* const weight = static_cast<float*>(scratch);
  float* const logits = weight + kLeaf * kBlock;
  float* const bias = logits + a.panels_per_item * kLeaf * kPanel;
  const Int64 num_panels = a.padded_rows / kPanel;
  const Int64 groups = ceil_div(num_panels, a.panels_per_item);
  // Weight rows packed at once. With few panels to use them, a tile's rows: they stay in the
  // first-level cache and memory is read row by row, as it streams best.
  const bool few = a.panels_per_item <= 2;
  const Int64 chunk = few ? kTileRows : kLeaf;
#pragma clang loop unroll(disable)
  for (Int64 item = begin; item < end; ++item) {
    const Int64 leaf = item / groups;
    const Int64 first = item % groups * a.panels_per_item;
    const Int64 last = min(first + a.panels_per_item, num_panels);
    const LogpLeaf of_leaf = leaves_of(a).at(leaf);
    const Int64 v0 = of_leaf.begin, cols = of_leaf.cols, kept = kept_column(a, leaf, of_leaf);
#pragma clang loop unroll(disable)
    for (Int64 v = 0; v < cols; v += chunk) {
      const Int64 n = min(chunk, cols - v);
#pragma clang loop unroll(disable)
      for (Int64 k0 = 0; k0 < dim(a); k0 += kBlock) {
        const Int64 num_terms = min(kBlock, dim(a) - k0);
        pack_weight(a, v0 + v, n, k0, num_terms, chunk, weight);
        Prefetch next = prefetch_weight(a, v0 + v, k0, few ? 2 : 1, chunk,
                                        (last - first) * ceil_div(n, kTileRows));
#pragma clang loop unroll(disable)
        for (Int64 panel = first; panel < last; ++panel) {
          multiply_block<Shape, Reading::kAlongPanel>(
              weight, chunk * kPanel, a.hidden_by_row + (panel * dim(a) + k0) * kPanel, num_terms,
              k0 == 0 ? Start::kZero : Start::kAdd, logits + ((panel - first) * kLeaf + v) * kPanel,
              n, vectors_for(a.num_rows - panel * kPanel), &next);
        }
      }
    }
#pragma clang loop unroll(disable) vectorize(disable)
    for (Int64 v = 0; v < cols; ++v) bias[v] = bias_at(a, v0 + v);
#pragma clang loop unroll(disable)
    for (Int64 panel = first; panel < last; ++panel) {
      float* const c = logits + (panel - first) * kLeaf * kPanel;
      const Int64 row = panel * kPanel;
      const Int64 vectors = vectors_for(a.num_rows - row);
#pragma clang loop unroll(disable)
      for (Int64 j = 0; j < vectors; ++j) {
        const Int64 at = leaf * a.padded_rows + row + j * kLanes;
        reduce_leaf(a, c + j * kLanes, bias, of_leaf, load(a.lane_scale + row + j * kLanes), at);
      }
#pragma clang loop unroll(disable) vectorize(disable)
      for (Int64 i = 0; i < min(kPanel, a.num_rows - row); ++i) {
        const Int64 v = a.lane_target[row + i] - v0;
        if (v >= 0 && v < cols) a.lane_target_logit[row + i] = c[v * kPanel + i];
      }
      if (kept >= 0) keep_leaf(a, row, kept, c, cols);
    }
  }
}

extern "C" void rlk_linear_logp_fwd_merge(const Args* args, Int64 begin, Int64 end, void*) {
  const Args& a = *args;
#pragma clang loop unroll(disable)
  for (Int64 item = begin; item < end; ++item) {
#pragma clang loop unroll(disable)
    for (Int64 row = item * kPanel; row < min((item + 1) * kPanel, a.num_rows); row += kLanes) {
      merge_rows(a, row);
    }
  }
}

extern "C" void rlk_linear_logp_fwd_join(const Args* args, Int64 begin, Int64 end, void*) {
#pragma clang loop unroll(disable)
  for (Int64 item = begin; item < end; ++item) join_parts(*args, item * kLanes);
}

}  // namespace rlk
