// SPDX-License-Identifier: Apache-2.0
// ppo_loss on the CPU: a policy loss of log-probs, its derivative a token, and its metrics.
//
//   loss = sum over active tokens of w * (rho * l + beta * k) - w * c_H * H
//
// common/loss/token.h has l, rho, k and their derivatives, common/loss/reduction.h the weights w.
//
// Constants, initialized by the JIT; options.h has their values, -1 is run-time:
//   kPolicy, kRatio, kMeanAdvantage, kDualClip, kCorrection, kLevel, kLeaves, kKl, kKlGradient,
//   kKlWeight, kEntropy                                                              (forward)
//   kX   type of the gradient: 1 fp32, 2 bf16, 3 fp16; never -1                     (backward)
//
// Steps in order; items are independent, so any split over threads gives the same bits:
//   rlk_ppo_loss_fwd_count    item: a sequence -> sequence_tokens, _log_ratio, _statistic,
//   _advantage rlk_ppo_loss_fwd_weigh    one item -> sequence_weight, sequence_kl_weight
//   rlk_ppo_loss_fwd_slope    item: a sequence -> sequence_grad, with kRatio 1
//   rlk_ppo_loss_fwd_main     item: a part of a sequence -> grad, grad_entropy, partials
//   rlk_ppo_loss_fwd_finish   one item -> loss, counts, float_metrics, exact
//   rlk_ppo_loss_bwd_main     item: a token -> grad = upstream * saved
//
// Reads 4 bytes a token and input, 1 of the mask, twice where a sequence's statistic is asked for;
// writes 4. Sums are exact (common/loss/exact.h), so loss and metrics follow no order.
extern const long long kX;
extern const long long kPolicy;
extern const long long kRatio;
extern const long long kMeanAdvantage;
extern const long long kDualClip;
extern const long long kCorrection;
extern const long long kLevel;
extern const long long kLeaves;
extern const long long kKl;
extern const long long kKlGradient;
extern const long long kKlWeight;
extern const long long kEntropy;

#include "backward_cpu.h"
#include "forward_cpu.h"
