// SPDX-License-Identifier: Apache-2.0
// logp on CUDA: log-probabilities of given targets from logits, and the gradient of the logits.
//
//   x[r][v]    = logit_scale * logits[r][v]
//   z[r][v]    = cap(x) * inverse_temperature[r], common/logp/formula.cuh
//   logp[r]    = (z[r][target] - max_v z) - log(sum_v exp(z - max))
//   lse[r]     = max_v z + log(sum)
//   entropy[r] = log(sum) - (sum_v exp(z - max) * (z - max)) / sum
//   dlogits    = common/logp/formula.cuh, row_gradient and logit_gradient
//
// Rendered before this text:
//   kX             type of logits: 1 fp32, 2 bf16, 3 fp16; never -1
//   kV             vocabulary size, or -1: run-time vocab
//   kSegment       as in linear_logp/kernel.cuh
//   kSoftcap, kLogitScale   as in common/logp/formula.cuh
//   kEntropy       1: entropy (backward: its gradient); 0: none; -1: run-time, where arrays are
//                  given
//   kStats         1: statistics of the logits (forward); 0: none; -1: run-time, likewise
// Macro: RLK_BACKWARD, 1 gives the entries of the backward, 0 those of the forward.
//
// Steps in launch order, each one argument by value: CudaCopy for pack, LogpCudaArgs for all
// others. Results follow no grid.
//                        grid                    if
//   rlk_logp_fwd_pack    any x 256               a row array needs a copy
//   rlk_logp_fwd_main    any x kLogpThreads      rows * parts are dealt out; with one part
//                                                logp_partial_bytes() of dynamic shared memory
//   rlk_logp_fwd_merge   any x 32                partials are in the workspace
//   rlk_logp_fwd_join    ceil(rows / 256) x 256  alone, of a call that has the parts of all ranks
//                                                (common/logp/shard.h)
//   rlk_logp_bwd_pack    any x 256               as above
//   rlk_logp_bwd_main    any x kLogpThreads      rows * parts are dealt out
//
// Reads the logits once, the backward reads and writes them once; rows that are not active are not
// read. 20 operations a logit, an exp among them.
// A header's text comes once, so one that both passes need must stand before the choice.
#include "logp/matrix.cuh"
#if RLK_BACKWARD
#include "logp/backward.cuh"
#else
#include "logp/forward.cuh"
#endif
