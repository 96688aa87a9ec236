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
  bool has_quads;  // four columns are one aligned access
};

RLK_DEVICE void load_leaf(const LeafRow& row, Int64 leaf, int cols, Quad (&q)[kGroups]) {
  const Int64 col = leaf * kLogpLeaf + 4 * row.lane;
  if (row.has_quads && cols >= kLogpLeaf) {
#pragma unroll
    for (int g = 0; g < kGroups; ++g) ld_stream(q[g].words, row.data + (col + 64 * g));
    return;
  }
#pragma unroll
  for (int g = 0; g < kGroups; ++g) {
#pragma unroll
    for (int w = 0; w < int{sizeof(T)}; ++w) q[g].words[w] = 0;
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      if (64 * g + 4 * row.lane + e >= cols) continue;
      const T x = row.data[(col + 64 * g + e) * row.col_stride];
      if constexpr (kX == kFloat32) {
        q[g].words[e] = __float_as_uint(x);
      } else {
        q[g].words[e / 2] |= unsigned{x} << (e % 2 * 16);
      }
    }
  }
}

// Partial of a leaf.
struct Partial {
  float max, sum, moment;
};

template <bool kCap>
RLK_DEVICE Partial fold_leaf(const Args& a, const Quad (&q)[kGroups], float scale, int lane,
                             int cols, bool entropy) {
  float z[4 * kGroups];
#pragma unroll
  for (int i = 0; i < 4 * kGroups; ++i) {
    float slope;
    z[i] = finish_logit<kCap>(a, scaled(a, q[i / 4].get(i % 4)), scale, slope);
  }
  if (cols < kLogpLeaf) {
#pragma unroll
    for (int i = 0; i < 4 * kGroups; ++i) {
      if (64 * (i / 4) + 4 * lane + i % 4 >= cols) z[i] = -infinity();
    }
  }
  Partial partial{-infinity(), 0.0f, 0.0f};
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
  return partial;
}

// Partials of a row's leaves, in shared or global memory.
struct Partials {
  float *max, *sum, *moment;
};

// Leaves [begin, end) of a row, by the whole block. A warp takes 2 * kAtOnce neighbours at
// once; the next ones are under way meanwhile. Calls keep(leaf, its columns) for each.
template <bool kCap, int kAtOnce, class Keep>
RLK_DEVICE void fold_leaves(const Args& a, const LeafRow& row, float scale, Int64 begin, Int64 end,
                            const Partials& to, Keep&& keep) {
  const bool entropy = kMayHaveEntropy && to.moment != nullptr;
  const int half = threadIdx.x % 32 / kLeafLanes;
  constexpr int kStep = 2 * kAtOnce;
  const int turn = static_cast<int>(blockDim.x / 32) * kStep;
  // Beyond the end the last leaf again, which is not stored.
  const auto leaf_at = [&](Int64 first, int u) { return min(first + 2 * u + half, end - 1); };
  const auto cols_of = [&](Int64 leaf) {
    return static_cast<int>(min<Int64>(vocab(a) - leaf * kLogpLeaf, kLogpLeaf));
  };
  Quad next[kAtOnce][kGroups];
  Int64 first = begin + threadIdx.x / 32 * kStep;
  if (first >= end) return;
#pragma unroll
  for (int u = 0; u < kAtOnce; ++u) {
    const Int64 leaf = leaf_at(first, u);
    load_leaf(row, leaf, cols_of(leaf), next[u]);
  }
#pragma unroll 1
  for (; first < end; first += turn) {
    Quad now[kAtOnce][kGroups];
#pragma unroll
    for (int u = 0; u < kAtOnce; ++u) {
#pragma unroll
      for (int g = 0; g < kGroups; ++g) now[u][g] = next[u][g];
    }
    const Int64 coming = first + turn;
    if (coming < end) {
#pragma unroll
      for (int u = 0; u < kAtOnce; ++u) {
        const Int64 leaf = leaf_at(coming, u);
        load_leaf(row, leaf, cols_of(leaf), next[u]);
      }
    }
#pragma unroll
    for (int u = 0; u < kAtOnce; ++u) {
      const Int64 leaf = leaf_at(first, u);
      const bool is_own = first + 2 * u + half < end;
      if (is_own) keep(leaf, now[u]);
      const Partial partial = fold_leaf<kCap>(a, now[u], scale, row.lane, cols_of(leaf), entropy);
      if (row.lane != 0 || !is_own) continue;
      to.max[leaf] = partial.max;
      to.sum[leaf] = partial.sum;
      if (entropy) to.moment[leaf] = partial.moment;
    }
  }
}

// The results of a row, by one warp: segment s by lanes s and s + 16.
RLK_DEVICE void merge_row(const Args& a, Int64 row, Int64 target, const Partials& from) {
  const int lane = threadIdx.x % 32;
  float target_logit = 0.0f;
  if (lane == 0 && target >= 0 && target < vocab(a)) {
    const T x = row_of(a.logits, row)[target * a.logits.col_stride];
    const float scale = scale_of(a, row);
    float slope;
    const float start = scaled(a, Element<kX>::to_float(x));
    target_logit = is_capped(a) ? finish_logit<true>(a, start, scale, slope)
                                : finish_logit<false>(a, start, scale, slope);
  }
  const int leaves = static_cast<int>(ceil_div(vocab(a), kLogpLeaf));
  const SegmentPartials segment =
      segment_of({from.max, from.sum, from.moment, 1, leaves}, lane % kMergeSegments);
  float max = max_of(segment);
#pragma unroll
  for (int lanes = 1; lanes < kMergeSegments; lanes *= 2) max = max_f32(max, shfl_xor(max, lanes));
  const float base = base_of(max);
  const float own_sum = sum_of(segment, base);
  float sum = __shfl_sync(kFullWarp, own_sum, 0);
#pragma unroll 5
  for (int i = 1; i < kMergeSegments; ++i) sum = sum + __shfl_sync(kFullWarp, own_sum, i);
  float moment = 0.0f;
  if (kMayHaveEntropy && from.moment) {
    const float own_moment = moment_of(segment, base);
    moment = __shfl_sync(kFullWarp, own_moment, 0);
#pragma unroll 5
    for (int i = 1; i < kMergeSegments; ++i)
      moment = moment + __shfl_sync(kFullWarp, own_moment, i);
  }
  if (lane == 0) write_row(a, row, target, target_logit, max, sum, moment);
}

RLK_DEVICE Partials workspace_partials(const Args& a, Int64 row, Int64 leaves) {
  const Int64 at = row * leaves;
  const bool has_moment = kMayHaveEntropy && a.partial_moment;
  return {a.partial_max + at, a.partial_sum + at, has_moment ? a.partial_moment + at : nullptr};
}

}  // namespace rlk
