// SPDX-License-Identifier: Apache-2.0
// linear_logp on the CPU: log-probabilities of given targets, and their gradients.
//
//   z[r][v]  = (sum_k hidden[r][k] * weight[v][k] + bias[v]) * inverse_temperature[r]
//   logp[r]  = (z[r][target] - max_v z) - log(sum_v exp(z - max))
//   dZ[r][v] = grad[r] * inverse_temperature[r] * (1[v == target] - exp((z - max) - log_sum))
//   dhidden = dZ * weight, dweight = dZ^T * hidden, dbias[v] = sum_r dZ[r][v]
//
// Constants, initialized by the JIT; every other choice is made by the level (cpu_args.h):
//   kX  type of hidden and weight: 1 fp32, 2 bf16, 3 fp16; never -1
//   kV  vocabulary size, or -1: run-time args->vocab
//   kD  hidden size, or -1: run-time args->dim
//
// Work comes in strips of rows and, in the backward, waves of vocabulary. P is the panel width, a
// leaf is kLeaf columns of vocabulary. An entry does items [begin, end); items are independent, so
// any split over threads gives the same bits. Steps run in this order, each after the one before:
//
//   forward, for each strip:            item
//     rlk_linear_logp_fwd_pack            a panel of rows -> hidden_by_row, lane_target, lane_scale
//     rlk_linear_logp_fwd_main            (leaf, group of panels_per_item panels), groups fastest
//                                         -> partials, lane_target_logit; uses the scratch
//     rlk_linear_logp_fwd_merge           a panel of rows -> logp, row_max, row_log_sum
//   backward, for each wave, for each strip:
//     rlk_linear_logp_bwd_pack_weight     kLeaf columns -> weight_wave (once a wave)
//     rlk_linear_logp_bwd_pack_hidden     a panel of rows -> hidden_by_row, hidden_by_col, lane_*
//     rlk_linear_logp_bwd_dz              as fwd_main, leaves of the wave -> grad_logits
//     rlk_linear_logp_bwd_dh              (panel of dim, panel of rows), rows fastest
//                                         -> grad_hidden_sum
//     rlk_linear_logp_bwd_dw              (panel of dim, leaf of the wave), leaves fastest
//                                         -> grad_weight_sum
//     rlk_linear_logp_bwd_db              leaf of the wave -> grad_bias_sum
//   after the strips of a wave: bwd_store_dw, bwd_store_db (item: leaf of the wave); after all
//   waves, as one strip of all rows: bwd_store_dh (item: a panel of rows).
// Only fwd_main needs scratch. Workspace is described at LinearLogpCpuArgs.
//
// Operations: forward 2*N*V*D flops, backward 6*N*V*D. The weight is read once a strip.
#include "backward_cpu.h"
#include "forward_cpu.h"
