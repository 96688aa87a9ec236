// SPDX-License-Identifier: Apache-2.0
// ppo_loss: a policy loss of log-probs, with its metrics.
#pragma once

#include "jit/op.hpp"
#include "templates/ppo_loss/args.h"

#include <cstdint>

namespace rlk {

// A count over all micro-batches and ranks: a number, an int64 tensor of one element on the call's
// device, or neither.
struct GlobalCount {
  std::int64_t value = 0;  // 0: none
  Tensor tensor;
};

// Padded: tokens [B, T]. Packed: [N], with cu_seqlens [B + 1]. One sequence: [T] without.
struct PpoLossCall : jit::OpCall {
  Tensor log_probs, old_log_probs;  // any floating dtype; arithmetic is in fp32
  Tensor advantages;                // as the tokens, or one a sequence: [B] or [B, 1]
  Tensor mask;                      // optional; bool, integer or float of 0 and 1
  Tensor rollout_log_probs, ref_log_probs, entropy;  // read with their choices alone
  Tensor weights;                                    // optional; as advantages
  Tensor cu_seqlens;                                 // optional; integers
  Tensor group_starts;                               // optional; integers [P + 1]
  std::int64_t group_size = 0;                       // in place of group_starts; 0: none

  LossChoices choices{};
  LossValues values{};
  long long reduction = kTokenMean, kl_reduction = kTokenMean;  // LossReduction
  double length = 0;                                            // L
  GlobalCount global_tokens, global_sequences, global_groups;

  // Forward: written. grad, grad_entropy may be absent.
  Tensor loss;                // float32 []
  Tensor grad, grad_entropy;  // float32, as the tokens
  Tensor counts, exact;       // int64 [kNumCounts], [kNumSums, 2]
  Tensor figures;             // float32 [kNumFigures]

  // Forward on CUDA, in place of those above where given: what each sequence's tokens share,
  // written without a look at log_probs but for gspo. float32, one a sequence.
  Tensor sequence_weight, sequence_kl_weight, sequence_statistic;

  // Backward: gradient = upstream * saved, of `log_probs` or `entropy`.
  Tensor upstream;  // float32 []
  Tensor saved;     // float32, as the tokens
  Tensor gradient;  // of the dtype asked for

  std::int64_t num_sequences() const {
    if (cu_seqlens.present()) return cu_seqlens.shape[0] - 1;
    return log_probs.rank == 2 ? log_probs.shape[0] : 1;
  }
};

namespace templates {
extern const jit::Op ppo_loss_op;
}

}  // namespace rlk
