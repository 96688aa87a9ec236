// SPDX-License-Identifier: Apache-2.0
// logp on the CPU: log-probabilities of given targets, entropy and log-sum-exp of the distributions
// that logits give, and the gradient of the logits.
//
//   z[r][v]  = softcap * tanh(logit_scale * logits / softcap) * inverse_temperature[r]; without
//              softcap, logit_scale * logits * ...
//   S = sum_v exp(z - max), T = sum_v exp(z - max) * (z - max), 0 * -inf being 0
//   logp[r]  = (z[r][target] - max_v z) - log S, entropy = log S - T / S, lse = max + log S
//   dlogits  = common/logp/cpu.h, logit_gradient
//
// Constants, initialized by the JIT:
//   kX  type of logits: 1 fp32, 2 bf16, 3 fp16; never -1
//   kV  vocabulary size, or -1: run-time args->vocab
//   kSoftcap, kLogitScale  1: applied, 0: none, or -1: run-time args->softcap, args->logit_scale
//   kEntropy  forward: is asked for, backward: has a gradient; 0, 1, or -1: run-time pointers
//
// Steps in order; items are independent, so any split over threads gives the same bits:
//   rlk_logp_fwd_main    item: (row of the strip, part), parts fastest -> partials, target logits
//   rlk_logp_fwd_merge   item: a vector of rows -> logp, row_max, row_log_sum, entropy, lse
//   rlk_logp_bwd_main    item: (row, part) -> grad_logits
//
// Reads the logits once, the backward writes as much. 20 operations a logit, an exp among them. The
// lanes are columns, as rows lie in memory; additions are those of linear_logp, whose lanes are
// rows.
extern "C" {
extern const long long kX;
extern const long long kV;
extern const long long kSoftcap;
extern const long long kLogitScale;
extern const long long kEntropy;
}

#include "../common/cpu/convert.h"
#include "../common/logp/cpu.h"
#include "backward_cpu.h"
#include "forward_cpu.h"
