// SPDX-License-Identifier: Apache-2.0
// grpo_loss on CUDA: log-probs of logits and the gradient of a policy loss of theirs, in one look
// at the logits. The loss itself is ppo_loss's, from these log-probs.
#pragma once

#include "templates/logp/op.hpp"
#include "templates/ppo_loss/op.hpp"

namespace rlk {

// A backward. log_prob, row_max, row_log_sum and grad_logits are written.
struct GrpoLossCall : LogpCall {
  // log_probs, grad and the results are not looked at, sequence_weight and those beside it are
  // read. Tensors are dense, float32 or (cu_seqlens) int64; advantages are one a sequence.
  PpoLossCall loss;
};

// Whether the logits have rows enough for a device of so many multiprocessors, and no more columns
// than a block takes.
bool grpo_loss_fits(const Tensor& logits, int num_sms);

void check_grpo_loss(const jit::OpCall& call);

// The partials of a row lie in a block's shared memory.
bool grpo_loss_takes(std::int64_t vocab);

// How a multiprocessor takes rows of a vocabulary: as many at once as it keeps whole, up to four.
struct GrpoLossRows {
  int blocks, threads, shared_bytes;
  std::int64_t num_kept;  // leaves of a row
};

// `most_shared` bytes are what a block may have.
GrpoLossRows grpo_loss_rows(std::int64_t vocab, int element_bytes, int most_shared);

// Most dynamic shared memory of a launch.
int grpo_loss_shared_bytes(const jit::Specialization& spec);

void launch_grpo_loss(const LoadedKernel& kernel, const jit::OpCall& call,
                      const jit::LaunchSettings& settings);

namespace templates {
extern const jit::Op grpo_loss_op;
}

}  // namespace rlk
