// SPDX-License-Identifier: Apache-2.0
// ppo_loss on CUDA: a policy loss of log-probs, its derivative a token, and its metrics.
//
//   loss = sum over active tokens of w * (rho * l + beta * k) - w * c_H * H
//
// common/loss/token.h has l, rho, k and their derivatives, common/loss/reduction.h the weights w.
//
// Rendered before this text; options.h has their values, -1 is run-time:
//   kPolicy, kRatio, kMeanAdvantage, kDualClip, kCorrection, kLevel, kLeaves, kKl, kKlGradient,
//   kKlWeight, kEntropy                                                              (forward)
//   kX   type of the gradient: 1 fp32, 2 bf16, 3 fp16; never -1                     (backward)
// Macro: RLK_BACKWARD, 1 gives the entries of the backward, 0 those of the forward.
//
// Steps in launch order, each one argument by value; results follow no grid:
//                              grid
//   rlk_ppo_loss_fwd_pack      any x 256          an array that is not dense fp32 (mask: bytes)
//   rlk_ppo_loss_fwd_count     any x 512          a block a sequence -> sequence_tokens, ...
//   rlk_ppo_loss_fwd_weigh     1 x 1024           -> sequence_weight, sequence_kl_weight
//   rlk_ppo_loss_fwd_slope     any x 256          a block a sequence -> sequence_grad: kRatio 1
//   rlk_ppo_loss_fwd_main      num_items x 256    -> grad, grad_entropy, partials[block]
//   rlk_ppo_loss_fwd_finish    1 x 1024           -> loss, counts, float_metrics, exact
//   rlk_ppo_loss_bwd_main      any x 256          grad = upstream * saved
//
// Reads 4 bytes a token and input and twice 1 of the mask, writes 4; a sequence's statistic reads
// its inputs once more. Backward: reads 4, writes 4 or 2. Sums are exact (common/loss/exact.h).
// A header's text comes once, so one that both passes need must stand before the choice.
#include "common/cuda/element.cuh"
#include "common/cuda/lanes.cuh"
#include "ppo_loss/args.h"
#if RLK_BACKWARD
#include "ppo_loss/backward.cuh"
#else
#include "ppo_loss/forward.cuh"
#endif
