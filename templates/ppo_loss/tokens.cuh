// SPDX-License-Identifier: Apache-2.0
// What a token's loss is made of.
#pragma once

#include "common/cuda/lanes.cuh"
#include "common/loss/token.h"
#include "ppo_loss/choices.h"

namespace rlk {

// The sequence of a token: the last that starts at or before it.
RLK_DEVICE Int64 sequence_of(const PpoLossArgs& a, Int64 token) {
  if (!a.starts) {
    // 64-bit division is some 70 instructions.
    if (a.num_tokens <= 0x7fffffff) {
      return static_cast<unsigned>(token) / static_cast<unsigned>(a.length);
    }
    return token / a.length;
  }
  Int64 low = 0, high = a.num_sequences;
#pragma unroll 1
  while (high - low > 1) {
    const Int64 middle = (low + high) / 2;
    if (a.starts[middle] <= token) {
      low = middle;
    } else {
      high = middle;
    }
  }
  return low;
}

// What the tokens of one sequence have in common, into the inputs of each.
RLK_DEVICE void enter_sequence(const PpoLossArgs& a, const LossChoices& c, Int64 i,
                               TokenInput& in) {
  in.weight = a.sequence_weight[i];
  if (c.kl) in.kl_weight = a.sequence_kl_weight[i];
  if (c.ratio != kTokenRatio) in.sequence_log_ratio = a.sequence_log_ratio[i];
  if (c.correction && c.level != kTokenLevel) in.sequence_statistic = a.sequence_statistic[i];
  if (a.advantage_is_of_sequence) {
    in.advantage = a.advantages[i];
  } else if (c.mean_advantage) {
    in.advantage = a.sequence_advantage[i];
  }
  if (c.correction == kGiven && a.importance_is_of_sequence) in.given = a.importance_weights[i];
}

// What a token has of its own, but its log-prob.
RLK_DEVICE void read_token(const PpoLossArgs& a, const LossChoices& c, Int64 t, TokenInput& in) {
  in.old = a.old_log_probs[t];
  if (!a.advantage_is_of_sequence && !c.mean_advantage) in.advantage = a.advantages[t];
  if (reads_rollout(c)) in.rollout = a.rollout_log_probs[t];
  if (c.correction == kGiven && !a.importance_is_of_sequence) in.given = a.importance_weights[t];
  if (c.kl) in.ref = a.ref_log_probs[t];
  if (c.entropy) in.entropy = a.entropy[t];
  if (a.weights && !a.weight_is_of_sequence) in.weight = in.kl_weight = a.weights[t];
}

}  // namespace rlk
