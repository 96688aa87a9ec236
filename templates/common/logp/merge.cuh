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
  error.num_ids = a.shard.num_ids;
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
      has_target ? stats.logits * rcp_rn(static_cast<float>(a.shard.num_ids)) : nan();
  a.stats.sum_p2[row] = has_target ? stats.squares * inverse * inverse : nan();
}

// A rank's part of an active row: shard.h.
RLK_DEVICE void write_part(const LogpCudaRows& a, Int64 row, float target_logit,
                           const Partial& part) {
  a.logp[row] = target_logit;
  a.row_max[row] = part.max;
  a.row_log_sum[row] = part.sum;
  if (kMayHaveEntropy && a.entropy) a.entropy[row] = part.moment;
  if (!has_stats(a)) return;
  const LeafStats stats = stats_of(part);
  a.stats.mean_logit[row] = stats.logits;
  a.stats.sum_p2[row] = stats.squares;
  const int argmax =
      stats.argmax == kNoColumn ? kNoColumn : stats.argmax + static_cast<int>(a.shard.begin);
  a.stats.max_logit[row] = __int_as_float(argmax);
}

// The results of an active row, from its sums over all columns; where ranks share them its part.
// `target_logit` is 0 where no column here is the target's.
RLK_DEVICE void write_row(const LogpCudaRows& a, Int64 row, Int64 target, float target_logit,
                          const Partial& whole) {
  if (a.shard.gives_part) return write_part(a, row, target_logit, whole);
  float max = whole.max, log_sum = log_f32(whole.sum);
  float logp = nan();
  if (is_id(a, target)) {
    logp = (target_logit - max) - log_sum;
  } else {
    report_target(a, row, target);
    max = log_sum = nan();  // all results of the row, and the backward's gradients
  }
  a.logp[row] = logp;
  if (has_stats(a)) write_stats(a, row, is_id(a, target), whole);
  if (a.lse) a.lse[row] = max + log_sum;
  if (kMayHaveEntropy && a.entropy) {
    a.entropy[row] = fma_rn(-whole.moment, rcp_rn(whole.sum), log_sum);
  }
  if (!a.row_max) return;
  a.row_max[row] = max;
  a.row_log_sum[row] = log_sum;
}

// The results of every row, from the parts of all ranks, which are joined as a tree: a thread a
// row.
RLK_DEVICE void join_parts(const LogpCudaRows& a) {
  const Int64 row = Int64{blockIdx.x} * blockDim.x + threadIdx.x;
  if (row >= a.num_rows) return;
  const Int64 target = target_of(a, row);
  if (!is_active(a, row, target)) return write_neutral(a, row);
  const bool entropy = kMayHaveEntropy && a.entropy, stats = has_stats(a);
  const int values = logp_part_values(entropy, stats);
  Tree tree;
  float target_logit = 0.0f;
#pragma unroll 1
  for (int i = 0; i < a.shard.num_parts; ++i) {
    const float* const from = a.shard.parts + Int64{i} * values * a.num_rows + row;
    target_logit = target_logit + from[0];
    Partial part{from[a.num_rows], from[2 * a.num_rows], entropy ? from[3 * a.num_rows] : 0.0f};
    const float* const of_stats = from + logp_part_values(entropy, false) * a.num_rows;
    set_stats(part, stats ? LeafStats{of_stats[0], of_stats[a.num_rows],
                                      __float_as_int(of_stats[2 * a.num_rows])}
                          : no_stats());
    tree.push(part);
  }
  write_row(a, row, target, target_logit, tree.total());
}

}  // namespace rlk
