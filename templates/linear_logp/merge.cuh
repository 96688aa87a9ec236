// SPDX-License-Identifier: Apache-2.0
// The forward's steps that every loop of its products shares: rows, pack and merge; see kernel.cuh.
#pragma once

#include "common/logp/merge.cuh"

namespace rlk {

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
  // A target that has no column has no logit that anyone wrote.
  write_row(a, row, target, has_column(a, target) ? a.target_logit[strip_row] : 0.0f, whole);
}

extern "C" __global__ void __launch_bounds__(256)
    rlk_linear_logp_fwd_join(const __grid_constant__ rlk::LinearLogpCudaArgs a) {
  rlk::join_parts(a);
}
