// SPDX-License-Identifier: Apache-2.0
// The results of a row of logits. Sixteen lanes fold a leaf: lane q has columns 64 g + 4 q + e of
// it, as a row's lanes in linear_logp's fp32 loop, and adds in the same order.
#pragma once

#include "common/logp/merge.cuh"
#include "logp/matrix.cuh"

namespace rlk {

constexpr int kLeafLanes = 16;
constexpr int kGroups = 3;  // of four columns that a lane has of a leaf
static_assert(kLeafLanes * kGroups * 4 == kLogpLeaf);

using Quad = Pack<4 * sizeof(T)>;

// Leaves whose loads a lane has under way at once.
constexpr int kLeavesAtOnce = kX == kFloat32 ? 1 : 2;

// Where a row's elements are, for a lane of a leaf.
struct LeafRow {
  const T* data;
  Int64 col_stride;
  int lane;
  bool all_quads;  // four columns of any leaf are one aligned access

  RLK_DEVICE bool has_quads(const Args& a, const LogpLeaf& leaf) const {
    if (leaves_of(a).segment() % 4 == 0) return all_quads;  // leaves begin alike
    return col_stride == 1 && address(data + leaf.begin) % (4 * sizeof(T)) == 0;
  }
};

RLK_DEVICE LeafRow leaf_row(const Args& a, const T* data) {
  return {data, a.logits.col_stride, static_cast<int>(threadIdx.x % kLeafLanes),
          a.logits.col_stride == 1 && address(data) % (4 * sizeof(T)) == 0 &&
              leaves_of(a).segment() % 4 == 0};
}

RLK_DEVICE void load_leaf(const Args& a, const LeafRow& row, const LogpLeaf& leaf,
                          Quad (&q)[kGroups]) {
  const Int64 col = Int64{leaf.begin} + 4 * row.lane;
  const bool has_quads = row.has_quads(a, leaf);
  if (has_quads && leaf.cols >= kLogpLeaf) {
#pragma unroll
    for (int g = 0; g < kGroups; ++g) ld_stream(q[g].words, row.data + (col + 64 * g));
    return;
  }
  const int left = leaf.cols - 4 * row.lane;
  if (has_quads && leaf.cols % 4 == 0) {
#pragma unroll
    for (int g = 0; g < kGroups; ++g) {
      if (64 * g < left) ld_stream(q[g].words, row.data + (col + 64 * g));
    }
    return;
  }
#pragma unroll
  for (int g = 0; g < kGroups; ++g) {
#pragma unroll
    for (int w = 0; w < int{sizeof(T)}; ++w) q[g].words[w] = 0;
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      if (64 * g + e >= left) continue;
      const T x = row.data[(col + 64 * g + e) * row.col_stride];
      if constexpr (kX == kFloat32) {
        q[g].words[e] = __float_as_uint(x);
      } else {
        q[g].words[e / 2] |= unsigned{x} << (e % 2 * 16);
      }
    }
  }
}

template <bool kCap>
RLK_DEVICE Partial fold_leaf(const Args& a, const Quad (&q)[kGroups], float scale, int lane,
                             const LogpLeaf& leaf, bool entropy, bool stats) {
  const int cols = leaf.cols;
  float z[4 * kGroups];
#pragma unroll
  for (int i = 0; i < 4 * kGroups; ++i) z[i] = scaled(a, q[i / 4].get(i % 4));
  if (kCap || scale != 1.0f) {  // the same in all lanes of a row
#pragma unroll
    for (int i = 0; i < 4 * kGroups; ++i) {
      float slope;
      z[i] = finish_logit<kCap>(a, z[i], scale, slope);
    }
  }
  if (cols < kLogpLeaf) {
#pragma unroll
    for (int i = 0; i < 4 * kGroups; ++i) {
      if (64 * (i / 4) + 4 * lane + i % 4 >= cols) z[i] = -infinity();
    }
  }
  Partial partial = no_columns();
  // A NaN is passed over here and found by the sum.
#pragma unroll
  for (int i = 0; i < 4 * kGroups; ++i) partial.max = max_f32(partial.max, z[i]);
#pragma unroll
  for (int lanes = 1; lanes < kLeafLanes; lanes *= 2) {
    partial.max = max_f32(partial.max, shfl_xor(partial.max, lanes));
  }
  const float base = base_of(partial.max);
#pragma unroll
  for (int i = 0; i < 4 * kGroups; ++i) {
    const float below = z[i] - base;
    const float term = exp_f32(below);
    partial.sum = partial.sum + term;
    if (entropy) partial.moment = fma_rn(term, exponent_factor(below), partial.moment);
  }
#pragma unroll
  for (int lanes = 1; lanes < kLeafLanes; lanes *= 2) {
    partial.sum = partial.sum + shfl_xor(partial.sum, lanes);
  }
  if (entropy) {
#pragma unroll
    for (int lanes = 1; lanes < kLeafLanes; lanes *= 2) {
      partial.moment = partial.moment + shfl_xor(partial.moment, lanes);
    }
  }
  if (kMayHaveStats && stats) {
    set_stats(partial, leaf_stats<4 * kGroups, 4, 64, kLeafLanes, 1>(leaf, 4 * lane, partial.max,
                                                                     [&](int i) { return z[i]; }));
  }
  return partial;
}

// Partials of a row's leaves, in shared or global memory.
struct Partials {
  float *max, *sum, *moment;
  LogitStatsPartials stats;

  RLK_DEVICE bool has_stats() const { return kMayHaveStats && stats.argmax != nullptr; }
  RLK_DEVICE Partial get(int leaf, bool entropy) const {
    Partial partial{max[leaf], sum[leaf], entropy ? moment[leaf] : 0.0f};
    set_stats(partial, has_stats() ? load_stats(stats, leaf) : no_stats());
    return partial;
  }
  RLK_DEVICE void set(int leaf, const Partial& partial, bool entropy) const {
    max[leaf] = partial.max;
    sum[leaf] = partial.sum;
    if (entropy) moment[leaf] = partial.moment;
    if (has_stats()) store_stats(stats, leaf, stats_of(partial));
  }
};

// A place among the leaves that moves without a division.
class LeafCursor {
 public:
  RLK_DEVICE LeafCursor(const LogpLeaves<kLogpLeaf>& leaves, int leaf)
      : begin_(leaves.at(leaf).begin),
        left_(leaves.segment() - leaf % leaves.of_segment() * kLogpLeaf) {}

  RLK_DEVICE void move(const LogpLeaves<kLogpLeaf>& leaves, int num_leaves) {
    const int of_segment = leaves.of_segment() * kLogpLeaf;
    const int beyond = of_segment - leaves.segment();
    begin_ += num_leaves * kLogpLeaf;
    left_ -= num_leaves * kLogpLeaf;
    const auto cross = [&] {
      left_ += of_segment;
      begin_ -= beyond;
    };
    if (left_ <= -beyond) cross();
    if (of_segment >= num_leaves * kLogpLeaf) return;  // more than one segment is rare
#pragma unroll 1
    while (left_ <= -beyond) cross();
  }
  RLK_DEVICE LogpLeaf leaf(const LogpLeaves<kLogpLeaf>& leaves) const {
    int cols = min(left_, kLogpLeaf);
    if (leaves.vocab % leaves.segment() != 0) {  // the last segment is shorter
      cols = min(static_cast<int>(leaves.vocab) - begin_, cols);
    }
    return {begin_, cols};
  }

 private:
  int begin_;
  int left_;  // columns to the end of the segment
};

// Leaves [begin, end) of a row, by the whole block. A warp takes 2 * kAtOnce neighbours at
// once; the next ones are under way meanwhile. Calls keep(leaf, its columns, their logits) for
// each.
template <bool kCap, int kAtOnce, class Keep>
RLK_DEVICE void fold_leaves(const Args& a, const LeafRow& row, float scale, int begin, int end,
                            const Partials& to, Keep&& keep) {
  const bool entropy = kMayHaveEntropy && to.moment != nullptr, stats = to.has_stats();
  constexpr int kStep = 2 * kAtOnce;
  const int turn = static_cast<int>(blockDim.x / 32) * kStep;
  const int half = threadIdx.x % 32 / kLeafLanes;
  const LogpLeaves<kLogpLeaf> leaves = leaves_of(a);
  int first = begin + static_cast<int>(threadIdx.x) / 32 * kStep + half;
  LeafCursor cursor(leaves, first);
  Quad next[kAtOnce][kGroups];
  // Both halves of a warp stay together.
  const auto has_leaf = [&](int first) { return first - half < end; };
  const auto load_next = [&](int first, LeafCursor at) {
#pragma unroll
    for (int u = 0; u < kAtOnce; ++u) {
      if (first + 2 * u < end) load_leaf(a, row, at.leaf(leaves), next[u]);
      at.move(leaves, 2);
    }
  };
  if (has_leaf(first)) load_next(first, cursor);
#pragma unroll 1
  for (; has_leaf(first); first += turn) {
    Quad now[kAtOnce][kGroups];
#pragma unroll
    for (int u = 0; u < kAtOnce; ++u) {
#pragma unroll
      for (int g = 0; g < kGroups; ++g) now[u][g] = next[u][g];
    }
    LeafCursor at = cursor;
    cursor.move(leaves, turn);
    if (has_leaf(first + turn)) load_next(first + turn, cursor);
#pragma unroll
    for (int u = 0; u < kAtOnce; ++u) {
      const int leaf = first + 2 * u;
      const LogpLeaf cols = at.leaf(leaves);
      at.move(leaves, 2);
      if (leaf < end) keep(leaf, cols, now[u]);
      const Partial partial = fold_leaf<kCap>(a, now[u], scale, row.lane, cols, entropy, stats);
      if (row.lane == 0 && leaf < end) to.set(leaf, partial, entropy);
    }
  }
}

// Joins the partials of each segment of a row where its first one lies, by the whole block, a warp
// a segment. A lane joins four neighbours and the lanes join as a tree, of 128 leaves; a tree of
// such groups is kept over the lanes. Beyond 4096 leaves the groups of a lane are joined in order.
RLK_DEVICE void join_segments(const Args& a, const Partials& at) {
  const LogpLeaves<kLogpLeaf> leaves = leaves_of(a);
  const int of_segment = leaves.of_segment(), count = leaves.count();
  const int lane = threadIdx.x % 32;
  const bool entropy = kMayHaveEntropy && at.moment != nullptr;
#pragma unroll 1
  for (int first = static_cast<int>(threadIdx.x / 32) * of_segment; first < count;
       first += static_cast<int>(blockDim.x / 32) * of_segment) {
    Partial whole = no_columns();
#pragma unroll 1
    for (int group = 0; group * 128 < of_segment; ++group) {
      Partial run[4];
#pragma unroll
      for (int l = 0; l < 4; ++l) {
        const int i = group * 128 + lane * 4 + l;
        run[l] = no_columns();
        if (i < of_segment) run[l] = at.get(first + i, entropy);
      }
      const Partial joined = join_lanes<32>(join(join(run[0], run[1]), join(run[2], run[3])));
      if (lane == group % 32) whole = join(whole, joined);
    }
    if (of_segment > 128) whole = join_lanes<32>(whole);
    if (lane == 0) at.set(first, whole, entropy);
  }
}

// The results of a row whose segments are joined, by one warp.
RLK_DEVICE void merge_row(const Args& a, Int64 row, Int64 target, const Partials& from) {
  const int lane = threadIdx.x % 32;
  float target_logit = 0.0f;
  if (lane == 0 && has_column(a, target)) {
    const T x = row_of(a.logits, row)[column_of(a, target) * a.logits.col_stride];
    const float scale = scale_of(a, row);
    float slope;
    const float start = scaled(a, Element<kX>::to_float(x));
    target_logit = is_capped(a) ? finish_logit<true>(a, start, scale, slope)
                                : finish_logit<false>(a, start, scale, slope);
  }
  const LogpLeaves<kLogpLeaf> leaves = leaves_of(a);
  const int segment = lane * leaves.of_segment();
  const bool entropy = kMayHaveEntropy && from.moment != nullptr;
  const Partial whole = join_lanes<kLogpSegments>(
      segment < leaves.count() ? from.get(segment, entropy) : no_columns());
  if (lane == 0) write_row(a, row, target, target_logit, whole);
}

RLK_DEVICE Partials workspace_partials(const Args& a, Int64 row, Int64 leaves) {
  const Int64 at = row * leaves;
  const bool has_moment = kMayHaveEntropy && a.partial_moment;
  Partials partials{
      a.partial_max + at, a.partial_sum + at, has_moment ? a.partial_moment + at : nullptr, {}};
  if (has_stats(a)) {
    const LogitStatsPartials& stats = a.partial_stats;
    partials.stats = {stats.logits + at, stats.squares + at, stats.argmax + at};
  }
  return partials;
}

}  // namespace rlk
