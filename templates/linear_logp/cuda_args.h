// SPDX-License-Identifier: Apache-2.0
// What the CUDA kernels of linear_logp and their host code agree on: tile shapes and arguments.
// Included by kernel.cuh, which has no other headers than templates, so this file includes no more.
#pragma once

#include "common/cuda/device_error.h"
#include "common/cuda/tensor_map.h"

namespace rlk {

// Columns of vocabulary that a partial covers: the same for every dtype and target.
constexpr int kLinearLogpLeaf = 192;

// A block computes a tile of rows x cols with sums cut into stages of k terms.
struct LinearLogpCudaTile {
  int rows, cols, k, stages, warp_rows, warp_cols;
  int blocks;  // of an SM, that registers are left for
  constexpr int threads() const { return 32 * warp_rows * warp_cols; }
  constexpr int shared_bytes(int element_bytes) const {
    return (rows + cols) * k * stages * element_bytes;
  }
};

// x: code of the storage type (1 fp32, 2 bf16, 3 fp16); shared_limit: most shared bytes a block of
// the target may have (99, 163 or 227 KiB). Results do not depend on any of it but the leaf.
// Logits: one leaf wide, warps of 64 x 96 so that shared memory keeps up with mma.sync.
constexpr LinearLogpCudaTile linear_logp_cuda_logits_tile(int x, int shared_limit) {
  return x == 1                      ? LinearLogpCudaTile{64, 192, 32, 2, 4, 2, 1}
         : shared_limit >= 227 << 10 ? LinearLogpCudaTile{256, 192, 64, 3, 4, 2, 1}
         : shared_limit >= 163 << 10 ? LinearLogpCudaTile{256, 192, 32, 5, 4, 2, 1}
                                     : LinearLogpCudaTile{256, 192, 32, 3, 4, 2, 1};
}
// Both gradients.
constexpr LinearLogpCudaTile linear_logp_cuda_gradient_tile(int x, int shared_limit) {
  return x == 1                      ? LinearLogpCudaTile{64, 192, 32, 2, 4, 2, 1}
         : shared_limit >= 227 << 10 ? LinearLogpCudaTile{256, 128, 64, 4, 4, 2, 1}
         : shared_limit >= 163 << 10 ? LinearLogpCudaTile{256, 128, 64, 3, 4, 2, 1}
                                     : LinearLogpCudaTile{256, 128, 64, 2, 4, 2, 1};
}

// The sm_90a loop, of 16-bit types: tiles one leaf wide (common/cuda/loop_sm90.cuh). Values of
// kTile; results do not depend on it.
struct LinearLogpSm90Tile {
  const char* name;
  int rows, stages;
  bool ping_pong, dynamic;
  constexpr int shared_bytes() const { return (rows + kLinearLogpLeaf) * 64 * stages * 2; }
};
constexpr LinearLogpSm90Tile kLinearLogpSm90Tiles[] = {
    {"128-dynamic", 128, 5, true, true},  // in a kernel's name it is left out
    {"64-dynamic", 64, 7, true, true},   {"64-static", 64, 7, true, false},
    {"128-static", 128, 5, true, false}, {"256-cooperative", 256, 3, false, true},
};

// Array of one value a row (or column of vocabulary); strides count elements and may be 0.
struct LinearLogpCudaArray {
  const void* data;
  long long stride;
  int type;  // a TypeCode of common/cuda/element.cuh
};

// What dZ of a row is made of: p * -(all + log_p * log p), plus `target` in the target's column.
struct LinearLogpCudaRowGrad {
  float target, all, log_p;
};

// Arguments of every entry but pack. Rows of a call are numbered 0 to num_rows; the active ones are
// numbered anew, ascending. Workspace is 256-byte aligned.
struct LinearLogpCudaArgs {
  // Sizes. Kernels read vocab and dim where kV, kD are -1; they are equal to the constants
  // elsewhere.
  long long vocab, dim, num_rows;

  // Made by the step rows where a mask or ignore_index is given, null elsewhere and in a forward
  // that leaves them out, where every row is computed.
  long long* rows;        // [num_rows] the active rows
  long long* num_active;  // [1]

  // Matrices of type kX, each row contiguous and 16-byte aligned; a dim that is no multiple of 16
  // bytes is padded with zeros to one. Anything else goes through the step pack.
  const void* hidden;
  long long hidden_pitch;
  int hidden_packed;  // 1: row i is active row i; 0: row i is row i of the call
  const void* weight;
  long long weight_pitch;

  LinearLogpCudaArray bias;         // [vocab] or null
  LinearLogpCudaArray target;       // [num_rows] integers
  LinearLogpCudaArray temperature;  // [num_rows] floats or null: inverse_temperature for all
  float inverse_temperature;
  // Read where kSoftcap, kLogitScale are not 0. Where one is -1: a softcap of 0 is none, a
  // logit_scale of 1 changes nothing.
  float softcap, inverse_softcap;
  float logit_scale;
  LinearLogpCudaArray mask;  // [num_rows] or null
  int has_ignore_index;
  long long ignore_index;

  float* logp;         // [num_rows]
  float* row_max;      // [num_rows]; null in a forward without backward
  float* row_log_sum;  // [num_rows]; likewise
  float* entropy;      // [num_rows]; forward: or null; backward: read with grad_entropy
  float* lse;          // [num_rows]; forward: or null
  DeviceError* error;
  const char* op;  // for `error`

  // Forward: active rows [first_row, first_row + strip_rows) at once.
  long long first_row, strip_rows;
  float* partial_max;     // [leaves][strip_rows]
  float* partial_sum;     // [leaves][strip_rows]
  float* partial_moment;  // [leaves][strip_rows] sum of exp(z - max) * (z - max); entropy alone
  float* target_logit;    // [strip_rows]

  unsigned* next_tile;  // sm_90a: counter of the launch, 0 before it

  // Tiles of a grid: rows fastest within groups of group_tiles rows of tiles, then columns, then
  // groups, so that what a group reads of the hidden matrix stays in the L2 cache.
  int group_tiles;

  // Backward. Values of active rows, made by the step grads.
  LinearLogpCudaArray grad, grad_entropy, grad_lse;  // [num_rows] upstream gradients, or null
  LinearLogpCudaRowGrad* row_grad;  // [num_rows] times inverse temperature, 2^row_shift
  int* row_shift;   // [num_rows] fp16: brings a bound of |dZ| into [2^13, 2^14); else 0
  int* call_shift;  // [1] the shift of the largest bound of the call
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

// Arguments of the step pack: copies rows of any strides into aligned, zero-padded ones. Element
// (r, c) of the copy is at `to + r * pitch + c`; r counts the leading axes in row-major order.
constexpr int kLinearLogpCudaAxes = 8;
struct LinearLogpCudaCopy {
  const void* from;
  void* to;
  long long num_rows, num_cols, pitch;  // pitch >= num_cols; what lies between becomes 0
  long long col_stride;
  int num_axes;  // leading axes; sizes[i] and strides[i], outermost first
  long long sizes[kLinearLogpCudaAxes], strides[kLinearLogpCudaAxes];
  int element_bytes;            // 1, 2, 4, 8, or 16 of aligned rows
  const long long* rows;        // copy row rows[i] to row i, i < *num_active; null: every row
  const long long* num_active;  // null with rows
  int skipped_if_all;           // nothing is copied where all rows are active
};

}  // namespace rlk
