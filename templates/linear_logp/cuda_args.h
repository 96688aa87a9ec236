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
  return x == 1 ? CudaTile{64, 192, 32, shared_limit >= 163 << 10 ? 3 : 2, 4, 2, 1}
         : shared_limit >= 227 << 10 ? CudaTile{256, 192, 64, 3, 4, 2, 1}
         : shared_limit >= 163 << 10 ? CudaTile{256, 192, 32, 5, 4, 2, 1}
                                     : CudaTile{256, 192, 32, 3, 4, 2, 1};
}
// Both gradients.
constexpr CudaTile linear_logp_cuda_gradient_tile(int x, int shared_limit) {
  return x == 1                      ? CudaTile{128, 128, 32, 3, 4, 2, 1}
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

// Of a forward; keeps: it may store exponentials, for which shared memory is left.
constexpr LinearLogpSm90Tile linear_logp_sm90_tile(int tile, bool keeps) {
  LinearLogpSm90Tile found = kLinearLogpSm90Tiles[tile < 0 ? 0 : tile];
  if (keeps && found.rows == 64) --found.stages;
  return found;
}
// Those of a backward's logits, stored through shared memory; takes_logits: dZ may be made of the
// logits themselves, which leaves registers for fewer rows.
constexpr LinearLogpSm90Tile linear_logp_sm90_grad_tile(bool takes_logits) {
  return takes_logits ? LinearLogpSm90Tile{"", 64, 6, true, true}
                      : LinearLogpSm90Tile{"", 128, 5, true, true};
}

// What a tile of a backward, or of exponentials that are kept, is stored through.
constexpr int kLinearLogpSm90StoreBytes = 8 * kSm90SlabBytes;

// Tiles of the gradients by that loop. That of the weight has few terms where there are few rows,
// so its stores are hidden behind the product of another tile.
struct LinearLogpSm90GradientTile {
  int rows, cols, stages;
  bool ping_pong;
  constexpr int shared_bytes() const {
    return (rows + cols) * 64 * stages * 2 + kLinearLogpSm90StoreBytes;
  }
};
constexpr LinearLogpSm90GradientTile kLinearLogpSm90HiddenTile{128, 256, 4, false};
constexpr LinearLogpSm90GradientTile kLinearLogpSm90WeightTile{128, 192, 5, true};

// Rows of a block of the forward's merge; each has a warp.
constexpr int kLinearLogpMergeRows = 16;

// What a row's dZ is made of: in the order of active rows.
struct LinearLogpRowGrad {
  LogpCudaRowGrad of;  // times inverse temperature, 2^row_shift
  float exact;         // dZ of the target's column, without softcap and gradient of the entropy
  float max, log_sum;
};

// The columns that a backward takes at once: leaves [first_leaf, first_leaf + num_leaves) of each
// of the segments [first_segment, first_segment + num_segments).
struct LinearLogpWave {
  int first_segment, num_segments;
  int first_leaf, num_leaves;
  // dZ, [num_rows][pitch] of type kX: `width` columns of each segment, a multiple of 64, of which
  // those that it does not fill are 0; `step` columns from segment to segment.
  int width, step;
  long long pitch;
  void* grad_logits;
};

// The rows of a sum over rows: `count` active ones from row `first` on, which is below 0 where rows
// of earlier chunks wait; after them num_left rows are left for the next chunk.
struct LinearLogpTerms {
  long long first, count, num_left;
  int has_sums;  // of rows before, which the sum goes on from
};

// Of a backward over a chunk of rows (LinearLogpChunk); sm_90a alone. kLinearLogpCarriedRows rows
// lie before row 0 of dZ, which has the memory of `kept`, and of `gathered`: the last of them wait.
struct LinearLogpCudaChunk {
  LinearLogpTerms* terms;  // [1], made by the step grads; null: the call has all rows
  long long* state;        // [2]: rows that wait; whether there are sums
  int is_first, is_last;
  const float* weight_sums;  // [vocab][dim] of rows before
  float* bias_sums;          // [kLinearLogpBiasChains][vocab], read and written; or null
};

// Exponentials that a forward keeps for its backward (exponentials.cuh), of type kX: of the first
// num_segments segments for each row of the call, [num_rows][pitch]. Each has `step` columns:
// `width` as in a wave of whole segments, then the maxima of its leaves as float32.
struct LinearLogpKept {
  void* data;  // or null
  long long pitch;
  int num_segments, width, step;
};
// Active rows of a chunk that may wait for the next one: fewer than the loop of sm_90a sums at
// once.
constexpr int kLinearLogpCarriedRows = 64;
constexpr int kLinearLogpBiasChains = 8;  // of a column of grad_bias

constexpr int kLinearLogpKeptStrip = 256;  // columns that a warp turns into dZ

// Arguments of every entry but pack. Rows of a call are numbered 0 to num_rows; the active ones are
// numbered anew, ascending. Workspace is 256-byte aligned.
struct LinearLogpCudaArgs : LogpCudaRows {
  long long dim;  // read where kD is -1, else equal to it

  // Matrices of type kX, each row contiguous and 16-byte aligned; a dim that is no multiple of 16
  // bytes is padded with zeros to one. Anything else goes through the step pack.
  const void* hidden;
  long long hidden_pitch;
  int hidden_packed;  // 1: row i is active row i; 0: row i is row i of the call
  // Active rows side by side, up to a multiple of 128 rows with zeros; made where not all rows are
  // active, and null where hidden does.
  const void* gathered;
  long long gathered_pitch;
  const void* weight;
  long long weight_pitch;

  LogpCudaArray bias;  // [vocab] or null

  // Active rows [first_row, first_row + strip_rows) at once; in the backward those of grad_hidden.
  long long first_row, strip_rows;
  float* partial_max;     // [leaves][strip_rows]
  float* partial_sum;     // [leaves][strip_rows]
  float* partial_moment;  // [leaves][strip_rows] sum of exp(z - max) * (z - max); entropy alone
  LogitStatsPartials partial_stats;  // [leaves][strip_rows] each; statistics alone
  float* target_logit;               // [strip_rows]

  LinearLogpKept kept;  // sm_90a alone; the forward writes, the backward reads it
  LinearLogpCudaChunk chunk;

  unsigned* next_tile;  // sm_90a: counter of the launch, 0 before it

  // Tiles of a grid: rows fastest within groups of group_tiles rows of tiles, then columns, then
  // groups, so that what a group reads of the hidden matrix stays in the L2 cache.
  int group_tiles;

  // Backward.
  const float* unless_one;      // or null: where it is 1 nothing is done, and num_active is -1
  LinearLogpRowGrad* row_grad;  // [num_rows] of active rows, made by the step grads
  int* row_shift;               // [num_rows] fp16: brings a bound of |dZ| into [2^13, 2^14); else 0
  int* call_shift;              // [1] the shift of the largest bound of the call
  // fp16: hidden for grad_weight, active rows scaled by 2^(call - row shift); else null
  const void* hidden_shifted;
  long long hidden_shifted_pitch;
  LinearLogpWave wave;
  int wave_is_kept;  // dZ is made of `kept`, whose memory it may have
  // Sums of grad_hidden over a segment, [num_segments][strip_rows][sum_pitch]; and sums of whole
  // waves that wait for others, [levels][num_rows][sum_pitch], of 2^level waves each.
  float* segment_sums;
  float* wave_sums;
  long long sum_pitch;  // dim rounded up to 4
  int add_levels;       // a set of levels: what a wave's sums are joined with
  int to_level;         // where the result waits, or -1: it is grad_hidden

  void* grad_hidden;     // [rows of the call][dim] of grad_hidden_type, or null
  int grad_hidden_type;  // kX or fp32, as grad_weight_type
  void* grad_weight;     // of grad_weight_type, or null
  int grad_weight_type;
  int adds_weight;  // grad_weight is fp32, to which the sums are added
  long long grad_weight_row_stride;
  void* grad_bias;  // of bias.type, or null
  long long grad_bias_stride;
};

// What `width` is: whole boxes of the loop of sm_90a.
constexpr int linear_logp_wave_width(const LogpLeaves<kLogpLeaf>& leaves,
                                     const LinearLogpWave& wave) {
  const int left = leaves.segment() - wave.first_leaf * kLogpLeaf;
  const int cols = wave.num_leaves * kLogpLeaf;
  return ((left < cols ? left : cols) + 63) / 64 * 64;
}

// Those of `kept` but its memory, where `segments` are.
constexpr LinearLogpKept linear_logp_kept(const LogpLeaves<kLogpLeaf>& leaves, int segments) {
  const int width =
      linear_logp_wave_width(leaves, {0, 1, 0, leaves.of_segment(), 0, 0, 0, nullptr});
  const int step = width + (leaves.of_segment() * 2 + 63) / 64 * 64;
  return {nullptr, 1ll * segments * step, segments, width, step};
}

// Argument besides of the forward's main step and of the backward's products; read by the loop of
// sm_90a alone.
struct LinearLogpCudaMaps {
  // Active rows: where all are active those of the call, else copied side by side.
  TensorMap hidden, gathered;
  TensorMap weight;
};
struct LinearLogpCudaGradMaps : LinearLogpCudaMaps {
  TensorMap grad_logits, grad_logits_lanes;  // as it is read along columns, along rows
  TensorMap weight_lanes;
  TensorMap hidden_lanes, gathered_lanes;  // of hidden_shifted both where there is one
};

}  // namespace rlk
