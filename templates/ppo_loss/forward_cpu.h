// SPDX-License-Identifier: Apache-2.0
// Entry points of ppo_loss's forward on the CPU; see kernel_cpu.cpp.
#pragma once

#include "common/cpu/convert.h"
#include "common/cpu/exact_sum.h"
#include "common/loss/token.h"
#include "ppo_loss/choices.h"
#include "ppo_loss/metrics.h"

namespace rlk {

using Args = PpoLossArgs;

using VecU8 = unsigned char __attribute__((ext_vector_type(RLK_VL)));
RLK_INLINE Mask load_mask(const unsigned char* p, long long first, long long count) {
  if (count >= kLanes) {
    if (p == nullptr) return static_cast<Mask>(-1);
    VecU8 x;
    __builtin_memcpy_inline(&x, p + first, sizeof x);
    return __builtin_convertvector(x, VecI) != 0;
  }
  Mask active = 0;
#pragma clang loop unroll(disable)
  for (long long i = 0; i < count; ++i) active[i] = p == nullptr || p[first + i] != 0 ? -1 : 0;
  return active;
}

RLK_INLINE long long number_of(Mask mask) { return -__builtin_reduce_add(mask); }

constexpr long long kSumTokens = ExactLanes<kTermBits>::kMostTerms * kLanes;

// Counts the active tokens of each sequence; sums what its log-ratio and correction need.
extern "C" void rlk_ppo_loss_fwd_count(const void* args, long long begin, long long end) {
  const Args& a = *static_cast<const Args*>(args);
  const LossChoices c = choices(a);
  const LossValues v = a.values;
  const bool needs_ratio = needs_mean(a, c, kMeanOfLogRatio);
  const bool needs_statistic = needs_mean(a, c, kMeanOfStatistic);
  const bool needs_advantage = needs_mean(a, c, kMeanOfAdvantage);
  const bool needs_means = needs_ratio || needs_statistic || needs_advantage;
#pragma clang loop unroll(disable)
  for (long long i = begin; i < end; ++i) {
    const long long first = start_of(a, i), last = start_of(a, i + 1);
    SequenceSums of{};
    if (a.pieces) of = joined(a, a.pieces, i);
#pragma clang loop unroll(disable)
    for (long long begin = first; !a.pieces && begin < last; begin += kSumTokens) {
      const long long end = begin + kSumTokens < last ? begin + kSumTokens : last;
      ExactLanes<kTermBits> ratio, statistic, advantage;
#pragma clang loop unroll(disable)
      for (long long t = begin; t < end; t += kLanes) {
        const auto load = [&](const float* from) { return load_some(from + t, end - t); };
        Mask active = load_mask(a.mask, t, end - t);
        of.tokens += number_of(active);
        if (!needs_means) continue;
        const VecF zero = splat(0.0f), old = load(a.old_log_probs);
        if (needs_statistic) {
          statistic.add(select(active, old - load(a.rollout_log_probs), zero));
        }
        if (c.leaves) active = active & !is_rejected(v, old - load(a.rollout_log_probs));
        of.left += number_of(active);
        if (needs_ratio) ratio.add(select(active, load(a.log_probs) - old, zero));
        if (needs_advantage) advantage.add(select(active, load(a.advantages), zero));
      }
      if (needs_ratio) add(of.sums[kMeanOfLogRatio], ratio.total());
      if (needs_statistic) add(of.sums[kMeanOfStatistic], statistic.total());
      if (needs_advantage) add(of.sums[kMeanOfAdvantage], advantage.total());
    }
    if (a.own_pieces) store_piece(a.own_pieces[i], of);
    a.sequence_tokens[i] = of.tokens;
    store_means(a, c, i, of);
  }
}

// Weights of all sequences; one item.
extern "C" void rlk_ppo_loss_fwd_weigh(const void* args, long long, long long) {
  const Args& a = *static_cast<const Args*>(args);
  LossCounts n{0, a.num_sequences, 0, a.num_groups};
#pragma clang loop unroll(disable)
  for (long long i = 0; i < a.num_sequences; ++i) {
    n.tokens += a.sequence_tokens[i];
    n.valid += a.sequence_tokens[i] > 0;
  }
  n = global_counts(a, n);
#pragma clang loop unroll(disable)
  for (long long g = 0; g < a.num_groups; ++g) {
    const long long first = first_of_group(a, g), last = first_of_group(a, g + 1);
    long long in_group = 0;
#pragma clang loop unroll(disable)
    for (long long i = first; i < last; ++i) in_group += a.sequence_tokens[i];
#pragma clang loop unroll(disable)
    for (long long i = first; i < last; ++i) weigh_sequence(a, n, i, in_group);
  }
}

// What a range of tokens adds up to, lane by lane.
struct Totals {
  ExactLanes<kTermBits> term, policy, absolute, kl_term;
  ExactLanes<kMetricBits> ratio, ratio_squared, log_ratio, k3, correction, correction_squared,
      log_correction, kl, entropy;
  VecI counts[kNumCounts] = {};
  VecF ratio_max = -__builtin_inff(), minus_ratio_min = -__builtin_inff(),
       log_correction_max = 0.0f;

  // Calls each(lanes, x) for every sum and its terms; x is 0 where a token is inactive.
  template <class Each>
  RLK_INLINE_MEMBER void for_each_sum(const LossChoices& c, Mask active, const TokenResult& t,
                                      Each each) {
    const VecF zero = splat(0.0f);
    each(absolute, magnitude(t.term));
    each(term, t.term);
    if (c.kl || c.entropy) each(policy, t.policy_term);
    each(ratio, select(active, t.ratio, zero));
    each(ratio_squared, select(active, t.ratio * t.ratio, zero));
    each(log_ratio, -t.log_ratio);
    each(k3, t.k3);
    if (c.correction) {
      each(correction, select(active, t.correction, zero));
      each(correction_squared, select(active, t.correction * t.correction, zero));
      each(log_correction, magnitude(t.log_correction));
    }
    if (c.kl) each(kl, t.kl);
    if (c.kl) each(kl_term, t.kl_term);
    if (c.entropy) each(entropy, t.entropy);
  }

  __attribute__((noinline)) void add_large(const LossChoices& c, Mask active,
                                           const TokenResult& t) {
    for_each_sum(c, active, t, [](auto& lanes, VecF x) { lanes.add(x); });
  }

  RLK_INLINE_MEMBER void add(const LossChoices& c, Mask active, const TokenResult& t) {
    Mask large = 0;
    for_each_sum(c, active, t, [&](auto&, VecF x) __attribute__((always_inline)) {
      large = large | is_large_term(magnitude(x));
    });
    if (__builtin_reduce_or(large) != 0) {
      add_large(c, active, t);
    } else {
      for_each_sum(c, active, t,
                   [](auto& lanes, VecF x) __attribute__((always_inline)) { lanes.add_small(x); });
    }
    if (c.correction) {
      const VecF size = magnitude(t.log_correction);
      log_correction_max = select(size > log_correction_max, size, log_correction_max);
      counts[kCountCorrectionHigh] -= t.correction_high;
      counts[kCountCorrectionLow] -= t.correction_low;
      counts[kCountRejected] -= t.rejected;
    }
    ratio_max = select(active & (t.ratio > ratio_max), t.ratio, ratio_max);
    minus_ratio_min = select(active & (-t.ratio > minus_ratio_min), -t.ratio, minus_ratio_min);
    counts[kCountActive] -= active;
    counts[kCountClipHigh] -= t.clip_high;
    counts[kCountClipLow] -= t.clip_low;
    counts[kCountOutside] -= t.outside;
    counts[kCountClamped] -= t.clamped;
    counts[kCountNonfinite] -= t.nonfinite;
    if (c.dual_clip) counts[kCountDual] -= t.dual;
  }
};

template <int kBits>
RLK_INLINE void store_sum(PpoLossPartial& to, int row, const ExactLanes<kBits>& lanes) {
  store_sum(to, row, lanes.total());
}

RLK_INLINE void store_totals(PpoLossPartial& to, const LossChoices& c, const Totals& totals) {
  store_sum(to, kSumLoss, totals.term);
  store_sum(to, kSumPolicy, c.kl || c.entropy ? totals.policy : totals.term);
  store_sum(to, kSumAbs, totals.absolute);
  store_sum(to, kSumRatio, totals.ratio);
  store_sum(to, kSumRatioSquared, totals.ratio_squared);
  store_sum(to, kSumLogRatio, totals.log_ratio);
  store_sum(to, kSumK3, totals.k3);
  store_sum(to, kSumCorrection, totals.correction);
  store_sum(to, kSumCorrectionSquared, totals.correction_squared);
  store_sum(to, kSumLogCorrection, totals.log_correction);
  store_sum(to, kSumKl, totals.kl);
  store_sum(to, kSumKlTerm, totals.kl_term);
  store_sum(to, kSumEntropy, totals.entropy);
#pragma clang loop unroll(disable)
  for (int i = 0; i < kNumCounts; ++i) to.counts[i] = __builtin_reduce_add(totals.counts[i]);
  to.extremes[kRatioMax] = __builtin_reduce_max(totals.ratio_max);
  to.extremes[kRatioMin] = __builtin_reduce_max(totals.minus_ratio_min);
  to.extremes[kLogCorrectionMax] = __builtin_reduce_max(totals.log_correction_max);
}

// What the tokens of sequence i have in common.
RLK_INLINE TokenInput enter_sequence(const Args& a, const LossChoices& c, long long i) {
  TokenInput in;
  in.advantage = in.rollout = in.ref = in.entropy = in.given = in.sequence_grad = splat(0.0f);
  if (a.advantage_is_of_sequence) {
    in.advantage = splat(a.advantages[i]);
  } else if (c.mean_advantage) {
    in.advantage = splat(a.sequence_advantage[i]);
  }
  if (c.correction == kGiven && a.importance_is_of_sequence) {
    in.given = splat(a.importance_weights[i]);
  }
  in.weight = splat(a.sequence_weight[i]);
  in.kl_weight = splat(a.sequence_kl_weight[i]);
  in.sequence_log_ratio = splat(a.sequence_log_ratio[i]);
  in.sequence_statistic = splat(a.sequence_statistic[i]);
  return in;
}

// What `count` tokens from t on have of their own.
RLK_INLINE void read_tokens(const Args& a, const LossChoices& c, long long t, long long count,
                            TokenInput& in) {
  in.active = load_mask(a.mask, t, count);
  in.log_prob = load_some(a.log_probs + t, count);
  in.old = load_some(a.old_log_probs + t, count);
  if (!a.advantage_is_of_sequence && !c.mean_advantage) {
    in.advantage = load_some(a.advantages + t, count);
  }
  if (reads_rollout(c)) in.rollout = load_some(a.rollout_log_probs + t, count);
  if (c.correction == kGiven && !a.importance_is_of_sequence) {
    in.given = load_some(a.importance_weights + t, count);
  }
  if (c.kl) in.ref = load_some(a.ref_log_probs + t, count);
  if (c.entropy) in.entropy = load_some(a.entropy + t, count);
  if (a.weights && !a.weight_is_of_sequence) {
    in.weight = in.kl_weight = select(in.active, load_some(a.weights + t, count), splat(0.0f));
  }
}

// Each sequence's part of the derivative through the mean of its log-ratios.
extern "C" void rlk_ppo_loss_fwd_slope(const void* args, long long begin, long long end) {
  const Args& a = *static_cast<const Args*>(args);
  const LossChoices c = choices(a);
  if (c.ratio != kSequenceRatio) return;
  const LossValues v = a.values;
#pragma clang loop unroll(disable)
  for (long long i = begin; i < end; ++i) {
    TokenInput in = enter_sequence(a, c, i);
    const long long last = start_of(a, i + 1);
    SequenceSums of{};
    if (a.slopes) of = joined(a, a.slopes, i);
#pragma clang loop unroll(disable)
    for (long long first = start_of(a, i); !a.slopes && first < last; first += kSumTokens) {
      const long long some = first + kSumTokens < last ? first + kSumTokens : last;
      ExactLanes<kTermBits> slope;
#pragma clang loop unroll(disable)
      for (long long t = first; t < some; t += kLanes) {
        read_tokens(a, c, t, some - t, in);
        const TokenResult result = token_loss(c, v, in);
        slope.add(result.sequence_grad);
        of.left += number_of(c.leaves ? in.active & !result.rejected : in.active);
      }
      add(of.sums[kSlope], slope.total());
    }
    if (a.own_slopes) store_piece(a.own_slopes[i], of);
    store_sequence_grad(a, i, of);
  }
}

extern "C" void rlk_ppo_loss_fwd_main(const void* args, long long begin, long long end) {
  const Args& a = *static_cast<const Args*>(args);
  const LossChoices c = choices(a);
  const LossValues v = a.values;
#pragma clang loop unroll(disable)
  for (long long item = begin; item < end; ++item) {
    const long long i = a.item_sequences[item];
    TokenInput in = enter_sequence(a, c, i);
    if (c.ratio == kSequenceRatio) in.sequence_grad = splat(a.sequence_grad[i]);
    Totals totals;
    const long long last = a.items[item + 1];
#pragma clang loop unroll(disable)
    for (long long t = a.items[item]; t < last; t += kLanes) {
      const long long count = last - t;
      read_tokens(a, c, t, count, in);
      const TokenResult result = token_loss(c, v, in);
      totals.add(c, in.active, result);
      if (a.grad) store_some(a.grad + t, result.grad, count);
      if (a.grad_entropy) store_some(a.grad_entropy + t, result.grad_entropy, count);
    }
    store_totals(a.partials[item], c, totals);
  }
}

// The loss and its metrics, or what these are made of; one item.
extern "C" void rlk_ppo_loss_fwd_finish(const void* args, long long, long long) {
  const Args& a = *static_cast<const Args*>(args);
  long long counts[kNumCounts] = {};
  float extremes[kNumExtremes] = {-__builtin_inff(), -__builtin_inff(), 0.0f};
#pragma clang loop unroll(disable)
  for (long long item = 0; item < a.num_items; ++item) {
    const PpoLossPartial& partial = a.partials[item];
#pragma clang loop unroll(disable)
    for (int i = 0; i < kNumCounts; ++i) counts[i] += partial.counts[i];
#pragma clang loop unroll(disable)
    for (int i = 0; i < kNumExtremes; ++i) {
      extremes[i] = partial.extremes[i] > extremes[i] ? partial.extremes[i] : extremes[i];
    }
  }
#pragma clang loop unroll(disable)
  for (long long i = 0; !a.totals && i < a.num_sequences; ++i)
    counts[kCountSequences] += a.sequence_tokens[i] > 0;
  if (a.totals) counts[kCountSequences] = a.totals[kTotalValid];
#pragma clang loop unroll(disable)
  for (int row = 0; row < kNumSums; ++row) {
    ExactSum sum{};
#pragma clang loop unroll(disable)
    for (long long item = 0; item < a.num_items; ++item) {
      const PpoLossPartial& p = a.partials[item];
      add(sum, {p.sum_low[row], p.sum_high[row], p.sum_special[row]});
    }
    if (a.own_total) {
      store_sum(*a.own_total, row, sum);
      continue;
    }
    store_exact(a.exact + 2 * row, sum);
    const float value = exact_value(sum, row < kNumTermSums ? kTermBits : kMetricBits);
    (row == 0 ? *a.loss : a.float_metrics[row - 1]) = value;
  }
  if (!a.own_total) return finish_metrics(counts, extremes, a.counts, a.float_metrics);
  for (int i = 0; i < kNumCounts; ++i) a.own_total->counts[i] = counts[i];
  for (int i = 0; i < kNumExtremes; ++i) a.own_total->extremes[i] = extremes[i];
}

}  // namespace rlk
