// SPDX-License-Identifier: Apache-2.0
// linear_logp on CUDA: log-probabilities of given targets, and their gradients.
//
//   x[r][v]    = logit_scale * (sum_k hidden[r][k] * weight[v][k] + bias[v])
//   z[r][v]    = cap(x) * inverse_temperature[r], common/logp/formula.cuh
//   logp[r]    = (z[r][target] - max_v z) - log(sum_v exp(z - max))
//   lse[r]     = max_v z + log(sum)
//   entropy[r] = log(sum) - (sum_v exp(z - max) * (z - max)) / sum
//   dZ[r][v]   = (g_logp * 1[v == target] - p * (g_logp - g_lse + g_entropy * (log p + entropy)))
//                * inverse_temperature[r] * logit_scale * cap'(x)
//     where log p = (z - max) - log(sum), and g_* are the row's upstream gradients
//   dhidden = dZ * weight, dweight = dZ^T * hidden, dbias[v] = sum_r dZ[r][v]
//
// Rendered before this text:
//   kX             type of hidden and weight: 1 fp32, 2 bf16, 3 fp16; never -1
//   kV             vocabulary size, or -1: run-time vocab
//   kSegment       columns of a segment (common/logp/leaves.h), or -1: of a vocabulary of its own
//                  where kV is given, else run-time
//   kD             hidden size, or -1: run-time dim
//   kTile          sm_90a and 16 bits: index of kLinearLogpSm90Tiles, or -1: the first
//   kSoftcap, kLogitScale   as in common/logp/formula.cuh
//   kEntropy       1: entropy (backward: its gradient); 0: none; -1: run-time, where arrays are
//                  given
//   kStats         1: statistics of the logits (forward); 0: none; -1: run-time, likewise
// Macros:
//   RLK_BACKWARD      1 gives the entries of the backward, 0 those of the forward
//   RLK_SHARED_LIMIT  most shared bytes that a block of the target may have
//
// Steps in launch order, each one argument by value: CudaCopy for pack,
// LinearLogpCudaArgs for all others, and LinearLogpCudaMaps after it for fwd_main. "tiles" is a
// grid of ceil(rows / tile.rows) * ceil(cols / tile.cols) blocks of tile.threads() with
// tile.shared_bytes() of dynamic shared memory (cuda_args.h); other steps have none. Steps with
// "if" are left out otherwise.
//
//   forward                       grid                     if
//     rlk_linear_logp_fwd_rows      1 x 1024                 a mask or ignore_index is given (may
//                                                            be left out: every row is computed)
//     rlk_linear_logp_fwd_pack      any x 256                an operand or row array needs a copy
//     for each strip of rows:
//     rlk_linear_logp_fwd_main      logits tiles of the strip x vocab; sm_90a, 16 bits: any x 384,
//                                   kLinearLogpSm90Tiles[kTile].shared_bytes() dynamic, in its
//                                   clusters
//     rlk_linear_logp_fwd_merge     ceil(strip_rows / kLinearLogpMergeRows) x 512
//   alone, of a call that has the parts of all ranks (common/logp/shard.h):
//     rlk_linear_logp_fwd_join      ceil(rows / 256) x 256
//   backward
//     rlk_linear_logp_bwd_rows      1 x 1024
//     rlk_linear_logp_bwd_pack      any x 256                as above; hidden also with bwd_rows
//     rlk_linear_logp_bwd_grads     1 x 512
//     rlk_linear_logp_bwd_shift     any x 256                fp16 and grad_weight
//     for each wave of columns (LinearLogpWave):
//     rlk_linear_logp_bwd_dz        logits tiles of num_rows x the wave's leaves
//       for each strip of rows:     grad_hidden
//       rlk_linear_logp_bwd_dh      gradient tiles of strip_rows x (segments * dim)
//       rlk_linear_logp_bwd_join    strip_rows x 256; where the wave ends its segments
//     rlk_linear_logp_bwd_dw        gradient tiles of (segments * width) x dim    grad_weight
//     rlk_linear_logp_bwd_db        ceil(segments * width / 32) x 256           grad_bias
//     rlk_linear_logp_bwd_carry     a thread for 16 bytes of a row of dZ and of hidden, x 256; of a
//                                   chunk of rows that is not the last (LinearLogpCudaChunk)
//     sm_90a, 16 bits: dz, dh, dw are any x 384, and LinearLogpCudaGradMaps follows their argument.
// Strips and waves never show in the result.
//
// Operations: forward 2*N*V*D, backward 6*N*V*D. Memory: forward 8*N*leaves bytes written and
// read once, 4 more with entropy, 12 more with statistics; backward a wave of dZ written once and
// read once a product, and 4 bytes of every sum of grad_hidden for each segment, written and read.
// A header's text comes once, so one that both passes need must stand before the choice.
#include "linear_logp/logits_sm90.cuh"
#if RLK_BACKWARD
#include "linear_logp/backward.cuh"
#else
#include "linear_logp/forward.cuh"
#include "linear_logp/forward_sm90.cuh"

namespace rlk {
constexpr int kMainThreads = kUsesSm90Loop ? Sm90Loop::kThreads : kLogitsTile.threads();
constexpr int kMainBlocks = kUsesSm90Loop ? 1 : kLogitsTile.blocks;
}  // namespace rlk

extern "C" __global__ void __launch_bounds__(rlk::kMainThreads, rlk::kMainBlocks)
    rlk_linear_logp_fwd_main(const __grid_constant__ rlk::LinearLogpCudaArgs a,
                             const __grid_constant__ rlk::LinearLogpCudaMaps maps) {
  if constexpr (rlk::kUsesSm90Loop) {
    rlk::forward_main_sm90(a, maps);
  } else {
    rlk::forward_main(a);
  }
}
#endif
