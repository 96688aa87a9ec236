// SPDX-License-Identifier: Apache-2.0
// linear_logp on the CPU: log-probabilities of given targets, entropy and log-sum-exp of their
// distributions, and the gradients.
//
//   x[r][v]  = logit_scale * (sum_k hidden[r][k] * weight[v][k] + bias[v])
//   z[r][v]  = cap(x) * inverse_temperature[r], common/logp/cpu.h, logit
//   S = sum_v exp(z - max), T = sum_v exp(z - max) * (z - max), 0 * -inf being 0
//   logp[r]  = (z[r][target] - max_v z) - log S, entropy = log S - T / S, lse = max + log S
//   l = (z - max) - log S, p = exp(l)
//   dZ[r][v] = inverse_temperature[r] * logit_scale * cap'(x) * (grad[r] *
//              1[v == target] + p * (grad_lse[r] - grad[r] - grad_entropy[r] * (l + entropy)))
//              backward_cpu.h says in which form
//   dhidden = dZ * weight, dweight = dZ^T * hidden, dbias[v] = sum_r dZ[r][v]
//
// Constants: common/logp/cpu_constants.h and kD; every other choice is made by the level
// (cpu_args.h).
//
// Work comes in strips of rows and, in the backward, waves of vocabulary. P is the panel width, a
// leaf is kLeaf columns of vocabulary. An entry does items [begin, end); items are independent, so
// any split over threads gives the same bits. Steps run in this order, each after the one before:
//
//   forward, for each strip:            item
//     rlk_linear_logp_fwd_pack            a panel of rows -> hidden_by_row, lane_target, lane_scale
//     rlk_linear_logp_fwd_main            (leaf, group of panels_per_item panels), groups fastest
//                                         -> partials, lane_target_logit; uses the scratch
//     rlk_linear_logp_fwd_merge           a panel of rows -> logp, row_max, row_log_sum, entropy,
//     lse
//   of a call that has the parts of all ranks, alone (common/logp/shard.h):
//     rlk_linear_logp_fwd_join            a vector of rows -> as fwd_merge
//   backward, for each segment, for each wave of it, for each strip:
//     rlk_linear_logp_bwd_pack_weight     kLeaf columns -> weight_wave (once a wave)
//     rlk_linear_logp_bwd_load_sums       kLeaf columns -> grad_weight_sum, grad_bias_sum (once a
//                                         wave, of a chunk after others)
//     rlk_linear_logp_bwd_pack_hidden     a panel of rows -> hidden_by_row, hidden_by_col, lane_*
//     rlk_linear_logp_bwd_dz              as fwd_main, leaves of the wave -> grad_logits
//     rlk_linear_logp_bwd_dh              (panel of dim, panel of rows), rows fastest
//                                         -> grad_hidden_sum
//     rlk_linear_logp_bwd_dw              (panel of dim, leaf of the wave), leaves fastest
//                                         -> grad_weight_sum
//     rlk_linear_logp_bwd_db              leaf of the wave -> grad_bias_sum
//   after the strips of a wave: bwd_store_dw, bwd_store_db (item: leaf of the wave); after the
//   waves of a segment: bwd_fold_dh (item: P * P floats of grad_hidden_sum); after all, as one
//   strip of all rows: bwd_store_dh (item: a panel of rows).
// Only fwd_main needs scratch. Workspace is described at LinearLogpCpuArgs.
//
// Operations: forward 2*N*V*D flops, backward 6*N*V*D. The weight is read once a strip.
#include "backward_cpu.h"
#include "forward_cpu.h"
