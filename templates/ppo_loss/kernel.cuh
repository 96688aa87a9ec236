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
//   rlk_ppo_loss_fwd_count     any x 512          a block a sequence -> sequence_tokens, ...;
//                                                 clears the tally
//   rlk_ppo_loss_fwd_weigh     1 x 1024           -> sequence_weight, sequence_kl_weight, where
//   they
//                                                 are not made in main: many sequences, groups,
//                                                 kRatio 1
//   rlk_ppo_loss_fwd_slope     any x 256          a block a sequence -> sequence_grad: kRatio 1
//   rlk_ppo_loss_fwd_main      num_items x 256    -> grad, grad_entropy; the last block to end:
//                                                 loss, counts, float_metrics, exact, or own_total
//   rlk_ppo_loss_fwd_finish    1 x 1024           the same of all ranks' own_total, alone
//   rlk_ppo_loss_bwd_main      any x 256          grad = upstream * saved; where they are one array
//                                                 and upstream is 1, nothing
//
// Reads 4 bytes a token and input and twice 1 of the mask, writes 4; a sequence's statistic reads
// its inputs once more. Backward: reads 4, writes 4 or 2. Sums are exact (common/loss/exact.h).
//
// In main a thread takes neighbouring tokens at once where it can: ordinary ones, whose terms are
// all small, in straight code, and then the others one by one. Both give the same bits. A header's
// text comes once, so one that both passes need must stand before the choice.
#include "common/cuda/element.cuh"
#include "common/cuda/lanes.cuh"
#include "common/cuda/overlap.cuh"
#include "ppo_loss/args.h"
#if RLK_BACKWARD
#include "ppo_loss/backward.cuh"
#else
#include "ppo_loss/forward.cuh"
#endif
