// SPDX-License-Identifier: Apache-2.0
// The formula of a logit, the merge of a row's leaves and the gradient of a logit on the CPU, for
// every op that has logits. `Args` are the op's arguments.
#pragma once

#include "../cpu/math.h"
#include "cpu_constants.h"
#include "cpu_types.h"

namespace rlk {
namespace {

RLK_INLINE Int64 min(Int64 a, Int64 b) { return a < b ? a : b; }
RLK_INLINE Int64 ceil_div(Int64 a, Int64 b) { return (a + b - 1) / b; }

template <class Args>
RLK_INLINE Int64 vocab(const Args& a) {
  return kV >= 0 ? kV : a.vocab;
}
template <class Args>
RLK_INLINE LogpLeaves<kLogpCpuLeaf> leaves_of(const Args& a) {
  return {vocab(a), kSegment > 0 ? static_cast<int>(kSegment)
                    : kV >= 0    ? logp_segment(kV)
                                 : a.shard.segment};
}
template <class Args>
RLK_INLINE bool is_capped(const Args& a) {
  return kSoftcap >= 0 ? kSoftcap : a.softcap != 0;
}
template <class Args>
RLK_INLINE bool has_entropy(const Args& a) {
  return kEntropy >= 0 ? kEntropy : a.entropy != nullptr;
}
template <class Args>
RLK_INLINE bool has_stats(const Args& a) {
  return kStats >= 0 ? kStats : a.stats.argmax != nullptr;
}
template <class Args>
RLK_INLINE bool has_entropy_grad(const Args& a) {
  return kEntropy >= 0 ? kEntropy : a.grad_entropy != nullptr;
}

// Where active row `row` of the strip lies in the outputs.
template <class Args>
RLK_INLINE Int64 output_row(const Args& a, Int64 row) {
  const Int64 i = a.first_row + row;
  return a.rows ? a.rows[i] : i;
}

struct Logit {
  VecF z;
  VecF slope;  // of the softcap, 1 - tanh^2
};

// The logit from the dot product; the order is fixed: bias, logit scale, softcap, temperature.
template <class Args>
RLK_INLINE Logit logit(const Args& a, VecF dot, float bias, VecF inverse_temperature) {
  VecF x = dot + bias, slope = splat(1.0f);
  if (kLogitScale != 0) x = x * a.logit_scale;
  if (is_capped(a)) {
    const Tanh t = tanh(x * a.inverse_softcap);
    x = t.value * a.softcap;
    slope = t.slope;
  }
  return {x * inverse_temperature, slope};
}

// A leaf of -inf alone: take 0 as its maximum, so that terms are exp(-inf) = 0 and not NaN.
RLK_INLINE VecF base_of(VecF max) { return select(max == -__builtin_inff(), splat(0.0f), max); }

// Statistics of some columns of a vector of rows; stats.h.
struct LeafStats {
  VecF logits, squares;
  VecI argmax;
};
RLK_INLINE LeafStats no_stats() { return {splat(0.0f), splat(0.0f), splat_int(kNoColumn)}; }

// The sums of some columns of a vector of rows, about the columns' own maximum.
template <bool kWithStats>
struct Partial {
  VecF max, sum, moment;
};
template <>
struct Partial<true> {
  VecF max, sum, moment;
  LeafStats stats{};
};
template <bool kWithStats>
RLK_INLINE Partial<kWithStats> no_columns() {
  Partial<kWithStats> none{splat(-__builtin_inff()), splat(0.0f), splat(0.0f)};
  if constexpr (kWithStats) none.stats = no_stats();
  return none;
}

// Of two parts of a row: the one of the smaller maximum is moved to the other's. Beside a part
// without columns the other keeps its bits.
template <bool kWithStats>
RLK_INLINE Partial<kWithStats> join(const Partial<kWithStats>& a, const Partial<kWithStats>& b,
                                    bool entropy) {
  const auto first = a.max >= b.max;
  Partial<kWithStats> joined = no_columns<kWithStats>();
  joined.max = select(first, a.max, b.max);
  const VecF below = select(first, b.max, a.max) - base_of(joined.max);
  const VecF factor = exp(below), sum = select(first, b.sum, a.sum);
  joined.sum = fma(sum, factor, select(first, a.sum, b.sum));
  if (entropy) {
    const VecF moved = fma(exponent_factor(below), sum, select(first, b.moment, a.moment));
    joined.moment = fma(moved, factor, select(first, a.moment, b.moment));
  }
  if constexpr (kWithStats) {
    const VecI lower = a.stats.argmax < b.stats.argmax ? a.stats.argmax : b.stats.argmax;
    const VecI larger = first ? a.stats.argmax : b.stats.argmax;
    joined.stats.logits = a.stats.logits + b.stats.logits;
    joined.stats.squares = fma(select(first, b.stats.squares, a.stats.squares), factor * factor,
                               select(first, a.stats.squares, b.stats.squares));
    joined.stats.argmax = a.max == b.max ? lower : larger;
  }
  return joined;
}

// Joins partials that come in order as a balanced tree.
template <bool kWithStats>
struct Tree {
  bool entropy;
  Int64 count;
  Partial<kWithStats> level[32];  // of 2^i partials each, where bit i of count is set

  RLK_INLINE_MEMBER explicit Tree(bool entropy) : entropy(entropy), count(0) {}
  RLK_INLINE_MEMBER void push(Partial<kWithStats> partial) {
    Int64 i = 0;
#pragma clang loop unroll(disable)
    for (; count >> i & 1; ++i) partial = join(level[i], partial, entropy);
    level[i] = partial;
    ++count;
  }
  RLK_INLINE_MEMBER Partial<kWithStats> total() const {
    Partial<kWithStats> sum = no_columns<kWithStats>();
#pragma clang loop unroll(disable)
    for (Int64 i = 0; count >> i != 0; ++i) {
      if (count >> i & 1) sum = join(level[i], sum, entropy);
    }
    return sum;
  }
};

// Of a vector of rows at index `at` of the partials.
template <class Args>
RLK_INLINE LeafStats load_stats(const Args& a, Int64 at) {
  return {load(a.partial_stats.logits + at), load(a.partial_stats.squares + at),
          *reinterpret_cast<const VecI*>(a.partial_stats.argmax + at)};
}
template <class Args>
RLK_INLINE void store_stats(const Args& a, Int64 at, const LeafStats& stats) {
  store(a.partial_stats.logits + at, stats.logits);
  store(a.partial_stats.squares + at, stats.squares);
  *reinterpret_cast<VecI*>(a.partial_stats.argmax + at) = stats.argmax;
}

// The statistics of a vector of rows. A row with NaN, or +inf, whose sum is NaN, has no maximum.
template <class Args>
RLK_INLINE void write_stats(const Args& a, Int64 row, const Partial<true>& whole) {
  const Mask has_max = whole.sum == whole.sum;
  const VecF max = select(has_max, whole.max, whole.sum);
  const VecI argmax = has_max ? whole.stats.argmax : splat_int(-1);
  const VecF mean = whole.stats.logits / splat(static_cast<float>(a.shard.num_ids));
  const VecF sum_p2 = whole.stats.squares / whole.sum / whole.sum;
#pragma clang loop unroll(disable) vectorize(disable)
  for (Int64 i = 0; i < min(kLanes, a.num_rows - row); ++i) {
    const Int64 to = output_row(a, row + i);
    a.stats.max_logit[to] = max[i];
    a.stats.argmax[to] = argmax[i];
    a.stats.mean_logit[to] = mean[i];
    a.stats.sum_p2[to] = sum_p2[i];
  }
}

// A rank's part of a vector of rows: shard.h.
template <bool kWithStats, class Args>
RLK_INLINE void write_part(const Args& a, Int64 row, VecF target_logit,
                           const Partial<kWithStats>& part) {
#pragma clang loop unroll(disable) vectorize(disable)
  for (Int64 i = 0; i < min(kLanes, a.num_rows - row); ++i) {
    const Int64 to = output_row(a, row + i);
    // Where another rank has the target nothing wrote its logit.
    a.logp[to] = a.target[a.first_row + row + i] >= 0 ? target_logit[i] : 0.0f;
    a.row_max[to] = part.max[i];
    a.row_log_sum[to] = part.sum[i];
    if (has_entropy(a)) a.entropy[to] = part.moment[i];
    if constexpr (kWithStats) {
      a.stats.mean_logit[to] = part.stats.logits[i];
      a.stats.sum_p2[to] = part.stats.squares[i];
      const Int32 col = part.stats.argmax[i];
      const Int32 argmax = col == kNoColumn ? col : col + static_cast<Int32>(a.shard.begin);
      a.stats.max_logit[to] = __builtin_bit_cast(float, argmax);
    }
  }
}

// The results of a vector of rows, from their sums over all columns; where ranks share these its
// part.
template <bool kWithStats, class Args>
RLK_INLINE void write_rows(const Args& a, Int64 row, VecF target_logit,
                           const Partial<kWithStats>& whole) {
  if (a.shard.gives_part) return write_part(a, row, target_logit, whole);
  const bool entropy = has_entropy(a);
  if constexpr (kWithStats) write_stats(a, row, whole);
  const VecF max = whole.max, sum = whole.sum, moment = whole.moment;
  alignas(64) float out[5][kLanes];
  const VecF log_sum = log(sum);
  store(out[0], (target_logit - max) - log_sum);
  store(out[1], max);
  store(out[2], log_sum);
  store(out[3], max + log_sum);
  if (entropy) store(out[4], log_sum - moment / sum);
#pragma clang loop unroll(disable) vectorize(disable)
  for (Int64 i = 0; i < min(kLanes, a.num_rows - row); ++i) {
    const Int64 to = output_row(a, row + i);
    a.logp[to] = out[0][i];
    if (a.row_max) a.row_max[to] = out[1][i];
    if (a.row_log_sum) a.row_log_sum[to] = out[2][i];
    if (a.lse) a.lse[to] = out[3][i];
    if (entropy) a.entropy[to] = out[4][i];
  }
}

template <bool kWithStats, class Args>
RLK_INLINE void merge_rows_of(const Args& a, Int64 row) {
  const LogpLeaves<kLogpCpuLeaf> leaves = leaves_of(a);
  const bool entropy = has_entropy(a);
  Tree<kWithStats> segments(entropy);
#pragma clang loop unroll(disable)
  for (Int64 leaf = 0; leaf < leaves.count();) {
    Tree<kWithStats> tree(entropy);
#pragma clang loop unroll(disable)
    for (Int64 i = 0; i < leaves.of_segment(); ++i, ++leaf) {
      const Int64 at = leaf * a.padded_rows + row;
      Partial<kWithStats> partial{load(a.partial_max + at), load(a.partial_sum + at),
                                  entropy ? load(a.partial_moment + at) : splat(0.0f)};
      if constexpr (kWithStats) partial.stats = load_stats(a, at);
      tree.push(partial);
    }
    segments.push(tree.total());
  }
  write_rows(a, row, load(a.lane_target_logit + row), segments.total());
}

// The results of a vector of rows, from the partials of their leaves; leaves.h has the order.
template <class Args>
RLK_INLINE void merge_rows(const Args& a, Int64 row) {
  if (has_stats(a)) {
    merge_rows_of<true>(a, row);
  } else {
    merge_rows_of<false>(a, row);
  }
}

// A value of a vector of rows in the part of a rank, [values][rows of the call].
template <class Args>
RLK_INLINE VecF value_of_part(const Args& a, Int64 row, const float* values) {
  alignas(64) float found[kLanes];
#pragma clang loop unroll(disable) vectorize(disable)
  for (Int64 i = 0; i < kLanes; ++i) {
    found[i] = values[output_row(a, row + min(i, a.num_rows - row - 1))];
  }
  return load(found);
}

template <bool kWithStats, class Args>
RLK_INLINE void join_parts_of(const Args& a, Int64 row) {
  const bool entropy = has_entropy(a);
  Tree<kWithStats> tree(entropy);
  VecF target_logit = splat(0.0f);
  const float* from = a.shard.parts;
  const auto next = [&]() __attribute__((always_inline)) {
    const VecF value = value_of_part(a, row, from);
    from += a.shard.call_rows;
    return value;
  };
#pragma clang loop unroll(disable)
  for (int i = 0; i < a.shard.num_parts; ++i) {
    target_logit = target_logit + next();
    Partial<kWithStats> part = no_columns<kWithStats>();
    part.max = next();
    part.sum = next();
    if (entropy) part.moment = next();
    if constexpr (kWithStats) {
      part.stats.logits = next();
      part.stats.squares = next();
      part.stats.argmax = __builtin_bit_cast(VecI, next());
    }
    tree.push(part);
  }
  write_rows(a, row, target_logit, tree.total());
}

// The results of a vector of rows, from the parts of all ranks, which are joined as a tree.
template <class Args>
RLK_INLINE void join_parts(const Args& a, Int64 row) {
  if (has_stats(a)) {
    join_parts_of<true>(a, row);
  } else {
    join_parts_of<false>(a, row);
  }
}

// What the gradient of a row's logits is made of. Upstream gradients are those of a raw logit
// before the softcap: times the inverse temperature and the logit scale.
struct GradientValues {
  VecF max, log_sum;
  VecF of_target;       // of the target's column, beside what it has times p
  VecF rest;            // times p: of the log-sum-exp, less that of the log-prob
  VecF rest_of_target;  // likewise, of the target's column
  VecF of_entropy = splat(0.0f), entropy = splat(0.0f);
};

// An upstream gradient of a row of this inverse temperature, as that of the raw logits.
template <class Args>
RLK_INLINE float scaled_grad(const Args& a, const float* grad, Int64 row,
                             float inverse_temperature) {
  if (!grad) return 0.0f;
  const float scaled = grad[row] * inverse_temperature;
  return kLogitScale != 0 ? scaled * a.logit_scale : scaled;
}

template <class Args>
RLK_INLINE VecF logit_gradient(const Args& a, Logit x, const GradientValues& row, VecI is_target) {
  const VecF none = splat(-__builtin_inff());
  const VecF l = (x.z - row.max) - row.log_sum;
  VecF of_p = select(is_target, row.rest_of_target, row.rest);
  if (has_entropy_grad(a)) of_p = fma(-row.of_entropy, exponent_factor(l) + row.entropy, of_p);
  VecF dz = fma(of_p, exp(l), select(is_target, row.of_target, splat(0.0f)));
  if (is_capped(a)) dz = dz * x.slope;
  // A column of -inf has no gradient, not even as the target; a row of only -inf stays NaN.
  return select((x.z == none) & (row.max != none), splat(0.0f), dz);
}

}  // namespace
}  // namespace rlk
