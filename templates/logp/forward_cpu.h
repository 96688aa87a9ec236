// SPDX-License-Identifier: Apache-2.0
// The forward: partials of each leaf and their merge.
#pragma once

#include "leaf_cpu.h"

namespace rlk {
namespace {

// The four chains of a leaf's sums: column % 4 of the leaf.
using Chains = float __attribute__((ext_vector_type(4)));

RLK_INLINE Chains load_chains(const float* p) { return *reinterpret_cast<const Chains*>(p); }
RLK_INLINE Chains fma_chains(Chains a, Chains b, Chains c) {
#if RLK_FMA
  return __builtin_elementwise_fma(a, b, c);
#else
  return a * b + c;
#endif
}
RLK_INLINE float larger(float a, float b) { return b > a ? b : a; }
RLK_INLINE float join(Chains c) { return (c[0] + c[1]) + (c[2] + c[3]); }

// Statistics of a leaf of one row; stats.h.
struct RowStats {
  float logits, squares;
  Int32 argmax;
};

// Sums of a leaf's logits, and of the squares of its terms, in the order of its other sums.
RLK_INLINE float sum_of_logits(const float* z, Int64 cols) {
  Chains sum = 0.0f;
  const Int64 whole = cols & ~Int64{3};
#pragma clang loop unroll(disable)
  for (Int64 v = 0; v < whole; v += 4) sum = sum + load_chains(z + v);
#pragma clang loop unroll(disable) vectorize(disable)
  for (Int64 v = whole; v < cols; ++v) sum[0] = sum[0] + z[v];
  return join(sum);
}
RLK_INLINE float sum_of_squares(const float* term, Int64 cols) {
  Chains sum = 0.0f;
  const Int64 whole = cols & ~Int64{3};
#pragma clang loop unroll(disable)
  for (Int64 v = 0; v < whole; v += 4) {
    const Chains terms = load_chains(term + v);
    sum = fma_chains(terms, terms, sum);
  }
#pragma clang loop unroll(disable) vectorize(disable)
  for (Int64 v = whole; v < cols; ++v) {
    const Chains terms = term[v];
    sum[0] = fma_chains(terms, terms, sum)[0];
  }
  return join(sum);
}

RLK_INLINE Int32 lowest_column(const float* z, const LogpLeaf& leaf, float max) {
  VecI lowest = splat_int(kNoColumn);
#pragma clang loop unroll(disable)
  for (Int64 v = 0; v < leaf.cols; v += kLanes) {
    const VecI col = lane_index() + splat_int(static_cast<Int32>(v));
    const Mask is_max = (load(z + v) == splat(max)) & (col < splat_int(leaf.cols));
    const VecI found = is_max ? col : splat_int(kNoColumn);
    lowest = found < lowest ? found : lowest;
  }
  Int32 first = lowest[0];
#pragma clang loop unroll(full)
  for (int i = 1; i < kLanes; ++i) first = lowest[i] < first ? lowest[i] : first;
  return first == kNoColumn ? kNoColumn : leaf.begin + first;
}

// The partial of one leaf. Order: maximum, then the terms of each sum in four chains, the last
// columns % 4 all to chain 0, joined as (0 + 1) + (2 + 3).
RLK_INLINE void fold_leaf(const Args& a, Int64 row, Int64 leaf) {
  alignas(64) float z[kLeaf], factor[kLeaf];
  const LogpLeaf of_leaf = leaves_of(a).at(leaf);
  const Int64 begin = of_leaf.begin, cols = of_leaf.cols;
  const Int64 padded = ceil_div(cols, kLanes) * kLanes;
  const VecF scale = splat(inverse_temperature(a, row));
  load_span(a.logits.data, offset_of(a, a.logits, row, begin), a.logits.col_stride, kX, z, cols,
            padded);
  VecF largest = splat(-__builtin_inff());
#pragma clang loop unroll(disable)
  for (Int64 v = 0; v < padded; v += kLanes) {
    VecF x = logit(a, load(z + v), 0.0f, scale).z;
    const VecI beyond = lane_index() >= splat_int(static_cast<Int32>(cols - v));
    x = select(beyond, splat(-__builtin_inff()), x);
    store(z + v, x);
    largest = select(x > largest, x, largest);  // a NaN is passed over here and found by the sum
  }
  float maxima[4] = {largest[0], largest[1], largest[2], largest[3]};
#pragma clang loop unroll(full)
  for (int i = 4; i < kLanes; ++i) maxima[i % 4] = larger(maxima[i % 4], largest[i]);
  const float max = larger(larger(maxima[0], maxima[1]), larger(maxima[2], maxima[3]));
  const Int64 target = a.target[a.first_row + row] - begin;
  if (target >= 0 && target < cols) a.lane_target_logit[row] = z[target];

  RowStats of_stats{};
  if (has_stats(a)) {
    of_stats.logits = sum_of_logits(z, cols);
    of_stats.argmax = lowest_column(z, of_leaf, max);
  }
  const VecF base = base_of(splat(max));
  const bool entropy = has_entropy(a);
#pragma clang loop unroll(disable)
  for (Int64 v = 0; v < padded; v += kLanes) {
    const VecF d = load(z + v) - base;
    store(z + v, exp(d));
    if (entropy) store(factor + v, exponent_factor(d));
  }
  Chains sum = 0.0f, moment = 0.0f;
  const Int64 whole = cols & ~Int64{3};
#pragma clang loop unroll(disable)
  for (Int64 v = 0; v < whole; v += 4) {
    sum = sum + load_chains(z + v);
    if (entropy) moment = fma_chains(load_chains(z + v), load_chains(factor + v), moment);
  }
#pragma clang loop unroll(disable) vectorize(disable)
  for (Int64 v = whole; v < cols; ++v) {
    sum[0] = sum[0] + z[v];
    if (!entropy) continue;
    const Chains term = z[v], by = factor[v];
    moment[0] = fma_chains(term, by, moment)[0];
  }
  const bool stats = has_stats(a);
  if (stats) of_stats.squares = sum_of_squares(z, cols);
  // The last row stands for those that fill up its vector: what lies there may be denormal, slow.
  const Int64 end = row + 1 < a.num_rows ? row + 1 : ceil_div(a.num_rows, kLanes) * kLanes;
#pragma clang loop unroll(disable) vectorize(disable)
  for (Int64 i = row; i < end; ++i) {
    const Int64 at = leaf * a.padded_rows + i;
    a.partial_max[at] = max;
    a.partial_sum[at] = join(sum);
    if (entropy) a.partial_moment[at] = join(moment);
    if (!stats) continue;
    a.partial_stats.logits[at] = of_stats.logits;
    a.partial_stats.squares[at] = of_stats.squares;
    a.partial_stats.argmax[at] = of_stats.argmax;
  }
}

}  // namespace

extern "C" void rlk_logp_fwd_main(const Args* args, Int64 begin, Int64 end) {
  const Args& a = *args;
#pragma clang loop unroll(disable)
  for (Int64 item = begin; item < end; ++item) {
    const Part part = part_of(a, item);
#pragma clang loop unroll(disable)
    for (Int64 leaf = part.begin; leaf < part.end; ++leaf) fold_leaf(a, part.row, leaf);
  }
}

extern "C" void rlk_logp_fwd_merge(const Args* args, Int64 begin, Int64 end) {
  const Args& a = *args;
#pragma clang loop unroll(disable)
  for (Int64 item = begin; item < end; ++item) {
    merge_rows(a, item * kLanes);
  }
}

extern "C" void rlk_logp_fwd_join(const Args* args, Int64 begin, Int64 end) {
#pragma clang loop unroll(disable)
  for (Int64 item = begin; item < end; ++item) join_parts(*args, item * kLanes);
}

}  // namespace rlk
