// SPDX-License-Identifier: Apache-2.0
// ppo_loss: a policy loss of log-probs, with its metrics.
#pragma once

#include "jit/op.hpp"
#include "templates/common/expect.hpp"
#include "templates/common/loss/options.hpp"
#include "templates/ppo_loss/args.h"

#include <array>
#include <cstdint>
#include <utility>

namespace rlk {

// Padded: tokens [B, T]. Packed: [N], with cu_seqlens [B + 1]. One sequence: [T] without.
struct PpoLossCall : jit::OpCall, LossOptions {
  Tensor log_probs, old_log_probs;  // any floating dtype; arithmetic is in fp32
  Tensor advantages;                // as the tokens, or one a sequence: [B] or [B, 1]
  Tensor mask;                      // optional; bool, integer or float of 0 and 1
  Tensor rollout_log_probs, ref_log_probs, entropy;  // read with their choices alone
  Tensor importance_weights;                         // as advantages, with its choice alone
  Tensor weights;                                    // optional; as advantages
  Tensor cu_seqlens;                                 // optional; integers
  Tensor group_starts;                               // optional; integers [P + 1]
  jit::Count global_tokens, global_sequences, global_groups;

  // Forward: written. grad, grad_entropy may be absent.
  Tensor loss;                // float32 []
  Tensor grad, grad_entropy;  // float32, as the tokens
  Tensor counts, exact;       // int64 [kNumCounts], [kNumSums, 2]
  Tensor float_metrics;       // float32 [kNumFloatMetrics]

  // Forward of a batch that lies on several ranks, int64. Each rank runs the steps up to the first
  // that writes one of own_pieces, own_slopes and own_total (in place of the outputs above), and
  // reads what all ranks wrote. With `partials` the last step is run alone, which makes the loss.
  Tensor own_pieces, own_slopes;  // [num_sequences, k_piece_words]
  Tensor pieces, slopes;          // [ranks, num_sequences, k_piece_words]
  Tensor totals;                  // [kNumTotals]
  Tensor own_total;               // [k_partial_words]
  Tensor partials;                // [ranks, k_partial_words]

  // Forward on CUDA, in place of those above where given: what each sequence's tokens share,
  // written without a look at log_probs but for a sequence's ratio. float32, one a sequence.
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

inline constexpr std::int64_t k_piece_words = sizeof(PpoLossPiece) / sizeof(std::int64_t);
inline constexpr std::int64_t k_partial_words = sizeof(PpoLossPartial) / sizeof(std::int64_t);

// Stage 2. Throws InvalidArgument.
void check_ppo_loss(const jit::OpCall& call);

// Stage 10.
std::span<const char* const> ppo_loss_entries(jit::Pass pass, Backend backend);
void launch_ppo_loss(const LoadedKernel& kernel, const jit::OpCall& call,
                     const jit::LaunchSettings& settings);
void launch_ppo_loss_cpu(const LoadedKernel& kernel, const PpoLossCall& call);
void launch_ppo_loss_cuda(const LoadedKernel& kernel, const PpoLossCall& call,
                          const jit::LaunchSettings& settings);

// Everything of the arguments but inputs and workspace: choices, values, sizes, what is written,
// and what is read of other ranks.
PpoLossArgs ppo_loss_args(const PpoLossCall& call);

// Boundaries, mask and global counts of a call on the host. Throws InvalidArgument.
void expect_ppo_loss_values(const PpoLossCall& call);

// The mask, and the global counts, with their names.
inline Given ppo_loss_mask(const PpoLossCall& call) { return {call, call.mask, "loss_mask"}; }
inline std::array<std::pair<const jit::Count*, const char*>, 3> ppo_loss_counts(
    const PpoLossCall& call) {
  return {{{&call.global_tokens, "global_tokens"},
           {&call.global_sequences, "global_sequences"},
           {&call.global_groups, "global_groups"}}};
}

// The parameters of a backward. Of the tensor that the gradient is of, the dtype alone is read.
inline constexpr jit::Parameter k_ppo_loss_gradient_parameters[] = {
    {"saved", jit::Kind::tensor, jit::field_of<&PpoLossCall::saved>},
    {"grad_output", jit::Kind::tensor, jit::field_of<&PpoLossCall::upstream>},
    {"log_probs", jit::Kind::tensor, jit::field_of<&PpoLossCall::log_probs>},
};

// What a forward reads of other ranks.
inline constexpr jit::Parameter k_ppo_loss_rank_parameters[] = {
    {"pieces", jit::Kind::tensor, jit::field_of<&PpoLossCall::pieces>},
    {"slopes", jit::Kind::tensor, jit::field_of<&PpoLossCall::slopes>},
    {"totals", jit::Kind::tensor, jit::field_of<&PpoLossCall::totals>},
    {"partials", jit::Kind::tensor, jit::field_of<&PpoLossCall::partials>},
};

namespace templates {
extern const jit::Op ppo_loss_op;
}

}  // namespace rlk
