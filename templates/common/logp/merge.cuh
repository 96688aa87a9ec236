// SPDX-License-Identifier: Apache-2.0
// How the partials of a row's leaves become its results: segments of leaves ascending, then the
// segments in order.
#pragma once

#include "common/cuda/device_error.cuh"
#include "common/logp/formula.cuh"

namespace rlk {

constexpr int kMergeSegments = 16;

RLK_DEVICE void report_target(const LogpCudaRows& a, Int64 row, Int64 id) {
  DeviceError& error = *a.error;
  if (!begin_report(error)) return;
  error.row = row;
  error.id = id;
  error.num_ids = vocab(a);
  error.op = a.op;
  end_report(error, DeviceError::kIdOutOfRange);
}

// Partials of the leaves of one segment of a row, `pitch` apart.
struct SegmentPartials {
  const float *max, *sum, *moment;  // moment: or null
  Int64 pitch;
  int count;
};

// `partials` has those of all leaves.
RLK_DEVICE SegmentPartials segment_of(SegmentPartials partials, int segment) {
  const int length = (partials.count + kMergeSegments - 1) / kMergeSegments;
  const int begin = segment * length;
  partials.max += begin * partials.pitch;
  partials.sum += begin * partials.pitch;
  if (partials.moment) partials.moment += begin * partials.pitch;
  partials.count = min(length, partials.count - begin);
  return partials;
}

RLK_DEVICE float max_of(const SegmentPartials& p) {
  float max = -infinity();
  // Four loads at once; beyond the segment's end they repeat its last leaf.
#pragma unroll 1
  for (int i = 0; i < p.count; i += 4) {
#pragma unroll
    for (int l = 0; l < 4; ++l) max = max_f32(max, p.max[min(i + l, p.count - 1) * p.pitch]);
  }
  return max;
}

RLK_DEVICE float sum_of(const SegmentPartials& p, float base) {
  float sum = 0.0f;
#pragma unroll 1
  for (int i = 0; i < p.count; i += 4) {
#pragma unroll
    for (int l = 0; l < 4; ++l) {
      const Int64 at = min(i + l, p.count - 1) * p.pitch;
      const float next = fma_rn(p.sum[at], exp_f32(p.max[at] - base), sum);
      sum = i + l < p.count ? next : sum;
    }
  }
  return sum;
}

RLK_DEVICE float moment_of(const SegmentPartials& p, float base) {
  float moment = 0.0f;
#pragma unroll 4
  for (int i = 0; i < p.count; ++i) {
    // The leaf's moment about its own maximum, moved to that of the row.
    const float below = p.max[i * p.pitch] - base;
    const float moved = fma_rn(exponent_factor(below), p.sum[i * p.pitch], p.moment[i * p.pitch]);
    moment = fma_rn(moved, exp_f32(below), moment);
  }
  return moment;
}

// The results of an active row, from its maximum and its sums over all segments.
RLK_DEVICE void write_row(const LogpCudaRows& a, Int64 row, Int64 target, float target_logit,
                          float max, float sum, float moment) {
  float log_sum = log_f32(sum);
  float logp = nan();
  if (target >= 0 && target < vocab(a)) {
    logp = (target_logit - max) - log_sum;
  } else {
    report_target(a, row, target);
    max = log_sum = nan();  // all results of the row, and the backward's gradients
  }
  a.logp[row] = logp;
  if (a.lse) a.lse[row] = max + log_sum;
  if (kMayHaveEntropy && a.entropy) a.entropy[row] = fma_rn(-moment, rcp_rn(sum), log_sum);
  if (!a.row_max) return;
  a.row_max[row] = max;
  a.row_log_sum[row] = log_sum;
}

}  // namespace rlk
