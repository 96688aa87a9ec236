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
  if (kDualClip >= 0) c.dual_clip = kDualClip;
  if (kCorrection >= 0) c.correction = kCorrection;
  if (kLevel >= 0) c.level = kLevel;
  if (kKl >= 0) c.kl = kKl;
  if (kKlGradient >= 0) c.kl_gradient = kKlGradient;
  if (kKlRatio >= 0) c.kl_ratio = kKlRatio;
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

// Counts of a call with those that were given over all of its parts.
RLK_INLINE LossCounts global_counts(const LossReductions& r, const LossCounts& n) {
  return {global_or(r.tokens, n.tokens), global_or(r.sequences, n.sequences),
          global_or(r.sequences, n.valid), global_or(r.groups, n.groups)};
}

// Weights of the tokens of sequence i, whose group has `in_group` active tokens.
RLK_INLINE void weigh_sequence(const PpoLossArgs& a, const LossCounts& n, long long i,
                               long long in_group) {
  const LossReductions& r = a.reductions;
  const long long tokens = a.sequence_tokens[i];
  float weight = token_weight(r.policy, n, r.length, tokens, in_group);
  float kl_weight = token_weight(r.kl, n, r.length, tokens, in_group);
  if (a.weights && a.weight_is_of_sequence) weight = kl_weight = a.weights[i];
  a.sequence_weight[i] = weight;
  a.sequence_kl_weight[i] = kl_weight;
}

// What a sequence's ratio and correction need, from its exact sums.
RLK_INLINE void store_statistics(const PpoLossArgs& a, const LossChoices& c, long long i,
                                 long long tokens, const ExactSum& log_ratio,
                                 const ExactSum& statistic) {
  const float count = static_cast<float>(tokens > 0 ? tokens : 1);
  a.sequence_tokens[i] = tokens;
  a.sequence_log_ratio[i] = exact_value(log_ratio, kTermBits) / count;
  const float total = exact_value(statistic, kTermBits);
  a.sequence_statistic[i] = c.level == kGeometricLevel ? total / count : total;
}

}  // namespace rlk
