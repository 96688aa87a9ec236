// SPDX-License-Identifier: Apache-2.0
// How the partials of a row's leaves become its results: common/logp/leaves.h has the order.
#pragma once

#include "common/cuda/device_error.cuh"
#include "common/logp/stats.cuh"

namespace rlk {

RLK_DEVICE void report_target(const LogpCudaRows& a, Int64 row, Int64 id) {
  DeviceError& error = *a.error;
  if (!begin_report(error)) return;
  error.row = row;
  error.id = id;
  error.num_ids = vocab(a);
  error.op = a.op;
  end_report(error, DeviceError::kIdOutOfRange);
}

// The sums of some columns, about their own maximum.
template <bool kWithStats>
struct PartialOf {
  float max, sum, moment;
};
template <>
struct PartialOf<true> {
  float max, sum, moment;
  LeafStats stats{};
};
using Partial = PartialOf<kMayHaveStats>;

// Nothing without statistics: so is what is read of one that has none.
RLK_DEVICE LeafStats stats_of(const PartialOf<true>& partial) { return partial.stats; }
RLK_DEVICE LeafStats stats_of(const PartialOf<false>&) { return no_stats(); }
RLK_DEVICE void set_stats(PartialOf<true>& partial, const LeafStats& stats) {
  partial.stats = stats;
}
RLK_DEVICE void set_stats(PartialOf<false>&, const LeafStats&) {}

RLK_DEVICE Partial no_columns() {
  Partial none{-infinity(), 0.0f, 0.0f};
  set_stats(none, no_stats());
  return none;
}

// Of two parts of a row, in either order: the one of the smaller maximum is moved to the other's.
// Beside a part without columns the other keeps its bits.
RLK_DEVICE Partial join(const Partial& a, const Partial& b) {
  const bool first = a.max >= b.max;
  const float below = (first ? b.max : a.max) - base_of(first ? a.max : b.max);
  const float factor = exp_f32(below), sum = first ? b.sum : a.sum;
  Partial joined{first ? a.max : b.max, fma_rn(sum, factor, first ? a.sum : b.sum), 0.0f};
  if constexpr (kMayHaveEntropy) {
    const float moved = fma_rn(exponent_factor(below), sum, first ? b.moment : a.moment);
    joined.moment = fma_rn(moved, factor, first ? a.moment : b.moment);
  }
  set_stats(joined, join_stats(stats_of(a), stats_of(b), first, a.max == b.max, factor));
  return joined;
}

// Of neighbouring lanes of a warp, as a balanced tree; all lanes of the warp call it.
template <int kLanes>
RLK_DEVICE Partial join_lanes(Partial own) {
#pragma unroll
  for (int lanes = 1; lanes < kLanes; lanes *= 2) {
    Partial other{shfl_xor(own.max, lanes), shfl_xor(own.sum, lanes), 0.0f};
    if constexpr (kMayHaveEntropy) other.moment = shfl_xor(own.moment, lanes);
    if constexpr (kMayHaveStats) {
      const LeafStats stats = stats_of(own);
      set_stats(other, {shfl_xor(stats.logits, lanes), shfl_xor(stats.squares, lanes),
                        __shfl_xor_sync(kFullWarp, stats.argmax, lanes)});
    }
    own = join(own, other);
  }
  return own;
}

// A row with NaN, or +inf, whose sum is NaN, has no maximum; nor has one of a wrong target.
RLK_DEVICE void write_stats(const LogpCudaRows& a, Int64 row, bool has_target,
                            const Partial& whole) {
  const LeafStats stats = stats_of(whole);
  const bool has_max = has_target && whole.sum == whole.sum;
  const float inverse = rcp_rn(whole.sum);
  a.stats.max_logit[row] = has_max ? whole.max : nan();
  a.stats.argmax[row] = has_max ? stats.argmax : -1;
  a.stats.mean_logit[row] =
      has_target ? stats.logits * rcp_rn(static_cast<float>(vocab(a))) : nan();
  a.stats.sum_p2[row] = has_target ? stats.squares * inverse * inverse : nan();
}

// The results of an active row, from its sums over all columns.
RLK_DEVICE void write_row(const LogpCudaRows& a, Int64 row, Int64 target, float target_logit,
                          const Partial& whole) {
  float max = whole.max, log_sum = log_f32(whole.sum);
  float logp = nan();
  if (target >= 0 && target < vocab(a)) {
    logp = (target_logit - max) - log_sum;
  } else {
    report_target(a, row, target);
    max = log_sum = nan();  // all results of the row, and the backward's gradients
  }
  a.logp[row] = logp;
  if (has_stats(a)) write_stats(a, row, target >= 0 && target < vocab(a), whole);
  if (a.lse) a.lse[row] = max + log_sum;
  if (kMayHaveEntropy && a.entropy) {
    a.entropy[row] = fma_rn(-whole.moment, rcp_rn(whole.sum), log_sum);
  }
  if (!a.row_max) return;
  a.row_max[row] = max;
  a.row_log_sum[row] = log_sum;
}

}  // namespace rlk
