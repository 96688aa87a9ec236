// SPDX-License-Identifier: Apache-2.0
// The forward's steps that every loop of its products shares: rows, pack and merge; see kernel.cuh.
#pragma once

#include "common/logp/merge.cuh"

namespace rlk {
constexpr int kMergeRows = 32;
}  // namespace rlk

extern "C" __global__ void __launch_bounds__(1024)
    rlk_linear_logp_fwd_rows(const __grid_constant__ rlk::LinearLogpCudaArgs a) {
  rlk::list_active_rows(a, true);
}

extern "C" __global__ void __launch_bounds__(256)
    rlk_linear_logp_fwd_pack(const __grid_constant__ rlk::LogpCudaCopy copy) {
  rlk::pack(copy);
}

// Merges a row's partials: segments of leaves ascending, then the segments in order.
extern "C" __global__ void __launch_bounds__(rlk::kMergeRows* rlk::kMergeSegments)
    rlk_linear_logp_fwd_merge(const __grid_constant__ rlk::LinearLogpCudaArgs a) {
  using namespace rlk;
  __shared__ float segment_max[kMergeSegments][kMergeRows];
  __shared__ float segment_sum[kMergeSegments][kMergeRows];
  __shared__ float segment_moment[kMayHaveEntropy ? kMergeSegments : 1][kMergeRows];
  const int lane = threadIdx.x % kMergeRows, segment = threadIdx.x / kMergeRows;
  const Int64 strip_row = Int64{blockIdx.x} * kMergeRows + lane;
  const Int64 active = a.first_row + strip_row;
  const bool real = strip_row < a.strip_rows && active < num_active(a);
  const int leaves = static_cast<int>(ceil_div(vocab(a), kLogpLeaf));
  const bool has_moment = kMayHaveEntropy && a.partial_moment;
  const SegmentPartials partials = segment_of(
      {a.partial_max + strip_row, a.partial_sum + strip_row,
       has_moment ? a.partial_moment + strip_row : nullptr, a.strip_rows, real ? leaves : 0},
      segment);

  float max = max_of(partials);
  segment_max[segment][lane] = max;
  __syncthreads();
#pragma unroll 4
  for (int i = 0; i < kMergeSegments; ++i) max = max_f32(max, segment_max[i][lane]);
  const float base = base_of(max);
  float sum = sum_of(partials, base), moment = 0.0f;
  segment_sum[segment][lane] = sum;
  if (has_moment) segment_moment[segment][lane] = moment = moment_of(partials, base);
  __syncthreads();
  if (segment != 0 || !real) return;
#pragma unroll 5
  for (int i = 1; i < kMergeSegments; ++i) sum = sum + segment_sum[i][lane];
  if (has_moment) {
#pragma unroll 5
    for (int i = 1; i < kMergeSegments; ++i) moment = moment + segment_moment[i][lane];
  }

  const Int64 row = call_row(a, active);
  const Int64 target = target_of(a, row);
  // Without a list of rows some may have been computed that are not active.
  if (!a.rows && !is_active(a, row, target)) return write_neutral(a, row);
  // A target out of range has no logit that anyone wrote.
  const bool has_logit = target >= 0 && target < vocab(a);
  write_row(a, row, target, has_logit ? a.target_logit[strip_row] : 0.0f, max, sum, moment);
}
