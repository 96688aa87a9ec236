// SPDX-License-Identifier: Apache-2.0
// The forward's steps that every loop of its products shares: rows, pack and merge; see kernel.cuh.
#pragma once

#include "common/logp/merge.cuh"

namespace rlk {

// Joins partials that come in order as a balanced tree, of at most 2^(kLevels - 1) of them: beyond,
// such trees are joined in order.
class Tree {
 public:
  RLK_DEVICE Tree() { level_[kLevels - 1] = no_columns(); }
  RLK_DEVICE void push(const Partial& partial) { put<0>(partial, count_++); }
  RLK_DEVICE Partial total() const {
    Partial sum = no_columns();
    unrolled<kLevels - 1>([&](auto i) {
      if (count_ >> i & 1) sum = join(level_[i], sum);
    });
    return join(level_[kLevels - 1], sum);
  }

 private:
  static constexpr int kLevels = 8;

  // As a binary counter counts: a carry takes the partials of a level with it.
  template <int i>
  RLK_DEVICE void put(const Partial& partial, unsigned index) {
    if constexpr (i == kLevels - 1) {
      level_[i] = join(level_[i], partial);
    } else if (index >> i & 1) {
      put<i + 1>(join(level_[i], partial), index);
    } else {
      level_[i] = partial;
    }
  }

  Partial level_[kLevels];
  unsigned count_ = 0;
};

// A row is merged by 32 lanes, each of which joins a run of leaves: a quarter of a segment, in
// leaves a power of two, so that the runs join as the segment's tree.
constexpr int kMergeLanes = 32;
RLK_DEVICE Partial merge_run(const Args& a, Int64 strip_row, int lane) {
  const LogpLeaves<kLogpLeaf> leaves = leaves_of(a);
  const int of_segment = leaves.of_segment();
  int run = 1;
#pragma unroll 1
  while (run * 4 < of_segment) run *= 2;
  const int first = lane / 4 * of_segment, last = first + of_segment - 1;
  const int begin = first + lane % 4 * run;
  const int end = first < leaves.count() ? min(begin + run - 1, last) + 1 : begin;
  const bool has_moment = kMayHaveEntropy && a.partial_moment;
  Tree tree;
#pragma unroll 1
  for (int i = begin; i < end; i += 4) {
    Partial next[4];  // four loads at once; what would lie beyond the run has no columns
#pragma unroll
    for (int l = 0; l < 4; ++l) {
      const Int64 at = min(i + l, end - 1) * a.strip_rows + strip_row;
      next[l] = {a.partial_max[at], a.partial_sum[at], has_moment ? a.partial_moment[at] : 0.0f};
      set_stats(next[l], has_stats(a) ? load_stats(a.partial_stats, at) : no_stats());
      if (i + l >= end) next[l] = no_columns();
    }
    tree.push(join(join(next[0], next[1]), join(next[2], next[3])));
  }
  return tree.total();
}

}  // namespace rlk

extern "C" __global__ void __launch_bounds__(1024)
    rlk_linear_logp_fwd_rows(const __grid_constant__ rlk::LinearLogpCudaArgs a) {
  rlk::list_active_rows(a, true);
}

extern "C" __global__ void __launch_bounds__(256)
    rlk_linear_logp_fwd_pack(const __grid_constant__ rlk::CudaCopy copy) {
  rlk::pack(copy);
}

// Merges the partials of kLinearLogpMergeRows rows: a thread joins a run of a row's leaves, then a
// warp the runs of a row.
extern "C" __global__ void __launch_bounds__(rlk::kLinearLogpMergeRows* rlk::kMergeLanes)
    rlk_linear_logp_fwd_merge(const __grid_constant__ rlk::LinearLogpCudaArgs a) {
  using namespace rlk;
  constexpr int kRows = kLinearLogpMergeRows;
  __shared__ Partial runs[kMergeLanes][kRows + 1];  // one more, for the banks
  const Int64 first = Int64{blockIdx.x} * kRows;
  const Int64 left = min(num_active(a) - a.first_row, a.strip_rows) - first;
  const int run = threadIdx.x / kRows, row_of_run = threadIdx.x % kRows;
  if (row_of_run < left) runs[run][row_of_run] = merge_run(a, first + row_of_run, run);
  __syncthreads();
  const int lane = threadIdx.x % kMergeLanes, warp_row = threadIdx.x / kMergeLanes;
  if (warp_row >= left) return;
  const Partial whole = join_lanes<kMergeLanes>(runs[lane][warp_row]);
  if (lane != 0) return;
  const Int64 strip_row = first + warp_row, row = call_row(a, a.first_row + strip_row);
  const Int64 target = target_of(a, row);
  // Without a list of rows some may have been computed that are not active.
  if (!a.rows && !is_active(a, row, target)) return write_neutral(a, row);
  // A target out of range has no logit that anyone wrote.
  const bool has_logit = target >= 0 && target < vocab(a);
  write_row(a, row, target, has_logit ? a.target_logit[strip_row] : 0.0f, whole);
}
