// SPDX-License-Identifier: Apache-2.0
// The forward's steps that every loop of its products shares: rows, pack and merge; see kernel.cuh.
#pragma once

#include "linear_logp/formula.cuh"

namespace rlk {

constexpr int kMergeRows = 32;
constexpr int kMergeSegments = 16;

RLK_DEVICE void report_target(const Args& a, Int64 row, Int64 id) {
  DeviceError& error = *a.error;
  // The first one of the device is kept.
  if (atomicCAS(&error.state, DeviceError::kNone, DeviceError::kBeingWritten) != 0) return;
  error.row = row;
  error.id = id;
  error.num_ids = vocab(a);
  error.op = a.op;
  __threadfence_system();
  *const_cast<volatile unsigned*>(&error.state) = DeviceError::kIdOutOfRange;
}

}  // namespace rlk

extern "C" __global__ void __launch_bounds__(1024)
    rlk_linear_logp_fwd_rows(const __grid_constant__ rlk::LinearLogpCudaArgs a) {
  rlk::list_active_rows(a, true);
}

extern "C" __global__ void __launch_bounds__(256)
    rlk_linear_logp_fwd_pack(const __grid_constant__ rlk::LinearLogpCudaCopy copy) {
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
  const int leaves = static_cast<int>(ceil_div(vocab(a), kLinearLogpLeaf));
  const int length = (leaves + kMergeSegments - 1) / kMergeSegments;
  const int begin = segment * length;
  const int count = real ? min(length, leaves - begin) : 0;
  const float* const first_max = a.partial_max + begin * a.strip_rows + strip_row;
  const float* const first_sum = a.partial_sum + begin * a.strip_rows + strip_row;

  float max = -infinity();
  // Four loads at once; beyond the segment's end they repeat its last leaf.
#pragma unroll 1
  for (int i = 0; i < count; i += 4) {
#pragma unroll
    for (int l = 0; l < 4; ++l) {
      max = max_f32(max, first_max[min(i + l, count - 1) * a.strip_rows]);
    }
  }
  segment_max[segment][lane] = max;
  __syncthreads();
#pragma unroll 4
  for (int i = 0; i < kMergeSegments; ++i) max = max_f32(max, segment_max[i][lane]);
  const float base = base_of(max);
  float sum = 0.0f;
#pragma unroll 1
  for (int i = 0; i < count; i += 4) {
#pragma unroll
    for (int l = 0; l < 4; ++l) {
      const Int64 at = min(i + l, count - 1) * a.strip_rows;
      const float next = fma_rn(first_sum[at], exp_f32(first_max[at] - base), sum);
      sum = i + l < count ? next : sum;
    }
  }
  segment_sum[segment][lane] = sum;
  float moment = 0.0f;
  if (kMayHaveEntropy && a.partial_moment) {
    const float* const first_moment = a.partial_moment + begin * a.strip_rows + strip_row;
#pragma unroll 4
    for (int i = 0; i < count; ++i) {
      // The leaf's moment about its own maximum, moved to that of the row.
      const float below = first_max[i * a.strip_rows] - base;
      const float moved = fma_rn(exponent_factor(below), first_sum[i * a.strip_rows],
                                 first_moment[i * a.strip_rows]);
      moment = fma_rn(moved, exp_f32(below), moment);
    }
    segment_moment[segment][lane] = moment;
  }
  __syncthreads();
  if (segment != 0 || !real) return;
#pragma unroll 5
  for (int i = 1; i < kMergeSegments; ++i) sum = sum + segment_sum[i][lane];

  const Int64 row = call_row(a, active);
  const Int64 target = target_of(a, row);
  // Without a list of rows some may have been computed that are not active.
  if (!a.rows && !is_active(a, row, target)) return write_neutral(a, row);
  float log_sum = log_f32(sum);
  float logp = nan();
  if (target >= 0 && target < vocab(a)) {
    logp = (a.target_logit[strip_row] - max) - log_sum;
  } else {
    report_target(a, row, target);
    max = log_sum = nan();  // all results of the row, and the backward's gradients
  }
  a.logp[row] = logp;
  if (a.lse) a.lse[row] = max + log_sum;
  if (kMayHaveEntropy && a.entropy) {
#pragma unroll 5
    for (int i = 1; i < kMergeSegments; ++i) moment = moment + segment_moment[i][lane];
    a.entropy[row] = fma_rn(-moment, rcp_rn(sum), log_sum);
  }
  if (!a.row_max) return;
  a.row_max[row] = max;
  a.row_log_sum[row] = log_sum;
}
