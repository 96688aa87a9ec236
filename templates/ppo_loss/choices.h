// SPDX-License-Identifier: Apache-2.0
// The choices of a call, constant where the template's constants say so: both backends.
#pragma once

#include "common/loss/exact.h"
#include "common/loss/reduction.h"
#include "ppo_loss/args.h"

namespace rlk {

RLK_INLINE LossChoices choices(const PpoLossArgs& a) {
  LossChoices c = a.choices;
  if (kPolicy >= 0) c.policy = kPolicy;
  if (kRatio >= 0) c.ratio = kRatio;
  if (kMeanAdvantage >= 0) c.mean_advantage = kMeanAdvantage;
  if (kDualClip >= 0) c.dual_clip = kDualClip;
  if (kCorrection >= 0) c.correction = kCorrection;
  if (kLevel >= 0) c.level = kLevel;
  if (kLeaves >= 0) c.leaves = kLeaves;
  if (kKl >= 0) c.kl = kKl;
  if (kKlGradient >= 0) c.kl_gradient = kKlGradient;
  if (kKlWeight >= 0) c.kl_weight = kKlWeight;
  if (kEntropy >= 0) c.entropy = kEntropy;
  return c;
}

// Boundaries on a device may be wrong: they lead nowhere outside.
RLK_INLINE long long within(long long x, long long most) { return x < 0 ? 0 : x > most ? most : x; }

RLK_INLINE long long start_of(const PpoLossArgs& a, long long sequence) {
  return a.starts ? within(a.starts[sequence], a.num_tokens) : sequence * a.length;
}

RLK_INLINE long long first_of_group(const PpoLossArgs& a, long long group) {
  return a.group_starts ? within(a.group_starts[group], a.num_sequences) : group * a.group_size;
}

RLK_INLINE long long global_or(const LossGlobal& global, long long own) {
  if (global.at) return *global.at;
  return global.value > 0 ? global.value : own;
}

// Counts of a call, or of all ranks, with those that were given over all of its parts.
RLK_INLINE LossCounts global_counts(const PpoLossArgs& a, LossCounts n) {
  if (const long long* const all = a.totals) {
    n = {all[kTotalTokens], all[kTotalSequences], all[kTotalValid], all[kTotalGroups]};
  }
  const LossReductions& r = a.reductions;
  return {global_or(r.tokens, n.tokens), global_or(r.sequences, n.sequences),
          global_or(r.sequences, n.valid), global_or(r.groups, n.groups)};
}

// Weights of the tokens of sequence i, which has `tokens` active ones, its group `in_group`.
struct SequenceWeights {
  float weight, kl_weight;
};
RLK_INLINE SequenceWeights weights_of_sequence(const PpoLossArgs& a, const LossCounts& n,
                                               long long i, long long tokens, long long in_group) {
  const LossReductions& r = a.reductions;
  if (a.weights && a.weight_is_of_sequence) return {a.weights[i], a.weights[i]};
  return {token_weight(r.policy, n, r.length, tokens, in_group),
          token_weight(r.kl, n, r.length, tokens, in_group)};
}

RLK_INLINE void weigh_sequence(const PpoLossArgs& a, const LossCounts& n, long long i,
                               long long in_group) {
  const SequenceWeights w = weights_of_sequence(a, n, i, a.sequence_tokens[i], in_group);
  a.sequence_weight[i] = w.weight;
  a.sequence_kl_weight[i] = w.kl_weight;
}

RLK_INLINE bool needs_mean(const PpoLossArgs& a, const LossChoices& c, PpoLossMean mean) {
  if (mean == kMeanOfLogRatio) return c.ratio != kTokenRatio;
  if (mean == kMeanOfStatistic) return c.correction != kNoCorrection && c.level != kTokenLevel;
  return c.mean_advantage != 0 && !a.advantage_is_of_sequence;
}

// Of a PpoLossPartial or a PpoLossPiece.
template <class Sums>
RLK_INLINE void store_sum(Sums& to, int row, const ExactSum& sum) {
  to.sum_low[row] = sum.low;
  to.sum_high[row] = sum.high;
  to.sum_special[row] = sum.special;
}

// What a sequence, or a piece of one, adds up to.
struct SequenceSums {
  long long tokens, left;  // active; active and not rejected
  ExactSum sums[kNumMeans];
};

RLK_INLINE void store_piece(PpoLossPiece& to, const SequenceSums& from) {
  to.tokens = from.tokens;
  to.left = from.left;
  for (int i = 0; i < kNumMeans; ++i) store_sum(to, i, from.sums[i]);
}

// The pieces of all ranks of sequence i.
RLK_INLINE SequenceSums joined(const PpoLossArgs& a, const PpoLossPiece* pieces, long long i) {
  SequenceSums all{};
#pragma unroll 1
  for (long long rank = 0; rank < a.num_pieces; ++rank) {
    const PpoLossPiece& piece = pieces[rank * a.num_sequences + i];
    all.tokens += piece.tokens;
    all.left += piece.left;
    for (int k = 0; k < kNumMeans; ++k) {
      add(all.sums[k], {piece.sum_low[k], piece.sum_high[k], piece.sum_special[k]});
    }
  }
  return all;
}

// What a sequence's ratio, advantage and correction are, from its exact sums.
RLK_INLINE void store_means(const PpoLossArgs& a, const LossChoices& c, long long i,
                            const SequenceSums& of) {
  const float count = static_cast<float>(of.tokens > 0 ? of.tokens : 1);
  const float count_left = static_cast<float>(of.left > 0 ? of.left : 1);
  a.sequence_log_ratio[i] = exact_value(of.sums[kMeanOfLogRatio], kTermBits) / count_left;
  const float total = exact_value(of.sums[kMeanOfStatistic], kTermBits);
  a.sequence_statistic[i] = c.level == kGeometricLevel ? total / count : total;
  a.sequence_advantage[i] = exact_value(of.sums[kMeanOfAdvantage], kTermBits) / count_left;
}

// The part of its sequence's derivative that each token left has.
RLK_INLINE void store_sequence_grad(const PpoLossArgs& a, long long i, const SequenceSums& of) {
  const float count_left = static_cast<float>(of.left > 0 ? of.left : 1);
  a.sequence_grad[i] = exact_value(of.sums[kSlope], kTermBits) / count_left;
}

}  // namespace rlk
