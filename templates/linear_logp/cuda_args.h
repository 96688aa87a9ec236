// SPDX-License-Identifier: Apache-2.0
// What the CUDA kernels of linear_logp and their host code agree on: tile shapes and arguments.
// Included by kernel.cuh, which has no other headers than templates, so this file includes no more.
#pragma once

#include "common/cuda/tensor_map.h"
#include "common/cuda/tile.h"
#include "common/logp/cuda_args.h"

namespace rlk {

// x: code of the storage type (1 fp32, 2 bf16, 3 fp16); shared_limit: most shared bytes a block of
// the target may have (99, 163 or 227 KiB). Results do not depend on any of it but the leaf.
// Logits: one leaf wide, warps of 64 x 96 so that shared memory keeps up with mma.sync.
constexpr CudaTile linear_logp_cuda_logits_tile(int x, int shared_limit) {
  return x == 1                      ? CudaTile{64, 192, 32, 2, 4, 2, 1}
         : shared_limit >= 227 << 10 ? CudaTile{256, 192, 64, 3, 4, 2, 1}
         : shared_limit >= 163 << 10 ? CudaTile{256, 192, 32, 5, 4, 2, 1}
                                     : CudaTile{256, 192, 32, 3, 4, 2, 1};
}
// Both gradients.
constexpr CudaTile linear_logp_cuda_gradient_tile(int x, int shared_limit) {
  return x == 1                      ? CudaTile{64, 192, 32, 2, 4, 2, 1}
         : shared_limit >= 227 << 10 ? CudaTile{256, 128, 64, 4, 4, 2, 1}
         : shared_limit >= 163 << 10 ? CudaTile{256, 128, 64, 3, 4, 2, 1}
                                     : CudaTile{256, 128, 64, 2, 4, 2, 1};
}

// The sm_90a loop, of 16-bit types: tiles one leaf wide (common/cuda/loop_sm90.cuh). Values of
// kTile; results do not depend on it.
struct LinearLogpSm90Tile {
  const char* name;
  int rows, stages;
  bool ping_pong, dynamic;
  int cluster = 1;  // blocks that have one tile below the other and share the weight's panels
  constexpr int rows_of_cluster() const { return rows * cluster; }
  constexpr int shared_bytes() const { return (rows + kLogpLeaf) * 64 * stages * 2; }
};
constexpr LinearLogpSm90Tile kLinearLogpSm90Tiles[] = {
    {"128-dynamic", 128, 5, true, true},  // in a kernel's name it is left out
    {"64-dynamic", 64, 7, true, true},       {"64-static", 64, 7, true, false},
    {"128-static", 128, 5, true, false},     {"256-cooperative", 256, 3, false, true},
    {"128-cluster", 128, 5, true, false, 2},
};

// Rows of a block of the forward's merge; each has a warp.
constexpr int kLinearLogpMergeRows = 16;

// Arguments of every entry but pack. Rows of a call are numbered 0 to num_rows; the active ones are
// numbered anew, ascending. Workspace is 256-byte aligned.
struct LinearLogpCudaArgs : LogpCudaRows {
  long long dim;  // read where kD is -1, else equal to it

  // Matrices of type kX, each row contiguous and 16-byte aligned; a dim that is no multiple of 16
  // bytes is padded with zeros to one. Anything else goes through the step pack.
  const void* hidden;
  long long hidden_pitch;
  int hidden_packed;  // 1: row i is active row i; 0: row i is row i of the call
  const void* weight;
  long long weight_pitch;

  LogpCudaArray bias;  // [vocab] or null

  // Forward: active rows [first_row, first_row + strip_rows) at once.
  long long first_row, strip_rows;
  float* partial_max;     // [leaves][strip_rows]
  float* partial_sum;     // [leaves][strip_rows]
  float* partial_moment;  // [leaves][strip_rows] sum of exp(z - max) * (z - max); entropy alone
  LogitStatsPartials partial_stats;  // [leaves][strip_rows] each; statistics alone
  float* target_logit;               // [strip_rows]

  unsigned* next_tile;  // sm_90a: counter of the launch, 0 before it

  // Tiles of a grid: rows fastest within groups of group_tiles rows of tiles, then columns, then
  // groups, so that what a group reads of the hidden matrix stays in the L2 cache.
  int group_tiles;

  // Backward. Values of active rows, made by the step grads.
  LogpCudaRowGrad* row_grad;  // [num_rows] times inverse temperature, 2^row_shift
  int* row_shift;             // [num_rows] fp16: brings a bound of |dZ| into [2^13, 2^14); else 0
  int* call_shift;            // [1] the shift of the largest bound of the call
  const void*
      hidden_shifted;  // hidden for grad_weight: packed, fp16 scaled by 2^(call - row shift)
  long long hidden_shifted_pitch;
  // The wave is columns [wave_begin, wave_begin + wave_cols) of the vocabulary.
  long long wave_begin;  // a multiple of the leaf
  long long wave_cols;
  long long wave_pitch;    // wave_cols rounded up to whole leaves, or more: leaves again
  void* grad_logits;       // [num_rows][wave_pitch] dZ, of type kX
  float* grad_hidden_sum;  // whole gradient tiles of [num_rows][dim], one after the other, between
                           // waves; null with one wave

  void* grad_hidden;  // of type kX, or null; rows of the call
  long long grad_hidden_row_stride, grad_hidden_col_stride;
  void* grad_weight;  // of type kX, or null
  long long grad_weight_row_stride, grad_weight_col_stride;
  void* grad_bias;  // of bias.type, or null
  long long grad_bias_stride;
};

// Argument of the forward's main step besides; read by the loop of sm_90a alone.
struct LinearLogpCudaMaps {
  // Active rows: where all are active those of the call, else copied side by side.
  TensorMap hidden, gathered;
  TensorMap weight;
};

}  // namespace rlk
