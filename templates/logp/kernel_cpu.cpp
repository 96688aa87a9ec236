// SPDX-License-Identifier: Apache-2.0
// logp on the CPU: log-probabilities of given targets, entropy and log-sum-exp of the distributions
// that logits give, and the gradient of the logits.
//
//   z[r][v]  = cap(logit_scale * logits[r][v]) * inverse_temperature[r], common/logp/cpu.h, logit
//   S = sum_v exp(z - max), T = sum_v exp(z - max) * (z - max), 0 * -inf being 0
//   logp[r]  = (z[r][target] - max_v z) - log S, entropy = log S - T / S, lse = max + log S
//   dlogits  = common/logp/cpu.h, logit_gradient
//
// Constants: common/logp/cpu_constants.h.
//
// Steps in order; items are independent, so any split over threads gives the same bits:
//   rlk_logp_fwd_main    item: (row of the strip, part), parts fastest -> partials, target logits
//   rlk_logp_fwd_merge   item: a vector of rows -> logp, row_max, row_log_sum, entropy, lse
//   rlk_logp_fwd_join    item: a vector of rows -> the same, from the parts of all ranks, alone
//   rlk_logp_bwd_main    item: (row, part) -> grad_logits
//
// Reads the logits once, the backward writes as much. 20 operations a logit, an exp among them. The
// lanes are columns, as rows lie in memory; additions are those of linear_logp, whose lanes are
// rows.
#include "../common/cpu/convert.h"
#include "../common/logp/cpu.h"
#include "backward_cpu.h"
#include "forward_cpu.h"
