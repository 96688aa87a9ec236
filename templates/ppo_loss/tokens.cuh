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

// What the tokens of one sequence have in common but for their weights, into the inputs of each.
RLK_DEVICE void enter_sequence_unweighed(const PpoLossArgs& a, const LossChoices& c, Int64 i,
                                         TokenInput& in) {
  if (c.ratio != kTokenRatio) in.sequence_log_ratio = a.sequence_log_ratio[i];
  if (c.correction && c.level != kTokenLevel) in.sequence_statistic = a.sequence_statistic[i];
  if (a.advantage_is_of_sequence) {
    in.advantage = a.advantages[i];
  } else if (c.mean_advantage) {
    in.advantage = a.sequence_advantage[i];
  }
  if (c.correction == kGiven && a.importance_is_of_sequence) in.given = a.importance_weights[i];
}

RLK_DEVICE void enter_sequence(const PpoLossArgs& a, const LossChoices& c, Int64 i,
                               TokenInput& in) {
  in.weight = a.sequence_weight[i];
  if (c.kl) in.kl_weight = a.sequence_kl_weight[i];
  enter_sequence_unweighed(a, c, i, in);
}

// read(array, input) of what a token has of its own, but its log-prob.
template <class Read>
RLK_DEVICE void read_inputs(const PpoLossArgs& a, const LossChoices& c, Read read) {
  read(a.old_log_probs, &TokenInput::old);
  if (!a.advantage_is_of_sequence && !c.mean_advantage) read(a.advantages, &TokenInput::advantage);
  if (reads_rollout(c)) read(a.rollout_log_probs, &TokenInput::rollout);
  if (c.correction == kGiven && !a.importance_is_of_sequence) {
    read(a.importance_weights, &TokenInput::given);
  }
  if (c.kl) read(a.ref_log_probs, &TokenInput::ref);
  if (c.entropy) read(a.entropy, &TokenInput::entropy);
  if (a.weights && !a.weight_is_of_sequence) {
    read(a.weights, &TokenInput::weight);
    if (c.kl) read(a.weights, &TokenInput::kl_weight);
  }
}

RLK_DEVICE void read_token(const PpoLossArgs& a, const LossChoices& c, Int64 t, TokenInput& in) {
  read_inputs(a, c, [&](const float* from, float TokenInput::* to) { in.*to = from[t]; });
}

}  // namespace rlk
