// SPDX-License-Identifier: Apache-2.0
// What the CPU kernels of linear_logp and their host code agree on: tile shapes and arguments.
// Included by kernel_cpu.cpp, which has no other headers than templates.
#pragma once

#include "../common/logp/cpu_types.h"

namespace rlk {

// Shape of the register tile (tile_rows x tile_vectors vectors of vector_lanes floats) and the two
// widths that fix the order of additions: the leaf (columns of vocabulary a partial covers) and the
// block (terms of a dot product that are summed before the sum joins the logit). One place for each
// level; specialized and generic variants share it, so they give the same bits.
struct LinearLogpCpuTile {
  Int64 vector_lanes;
  Int64 tile_rows;
  Int64 tile_vectors;
  Int64 leaf;   // multiple of tile_rows
  Int64 block;  // multiple of panel()
  // Width of a panel: the lanes of one register tile. A multiple of tile_rows.
  constexpr Int64 panel() const { return vector_lanes * tile_vectors; }
};

// vector_lanes: 16 (x86-64-v4), 8 (x86-64-v3), 4 (x86-64-v2).
constexpr LinearLogpCpuTile linear_logp_cpu_tile(Int64 vector_lanes) {
  return vector_lanes == 16  ? LinearLogpCpuTile{16, 8, 3, kLogpCpuLeaf, 192}
         : vector_lanes == 8 ? LinearLogpCpuTile{8, 4, 3, kLogpCpuLeaf, 192}
                             : LinearLogpCpuTile{4, 4, 3, kLogpCpuLeaf, 192};
}

// A "panel matrix" [cols/P][rows][P] of floats: column c of row r lies at (c / P * rows + r) * P +
// c % P with P = panel(). Every operand of every product has this form; see kernel_cpu.cpp.

// What a caller gives. Strides and offsets count elements and may be zero or negative. Only active
// rows are listed; every array a row is [num_rows] unless it is said to be indexed through `rows`.
struct LinearLogpCpuOperands : LogitOptions {
  // Sizes. Kernels read them where kV, kD are -1; they are equal to the constants elsewhere.
  Int64 vocab;
  LogpShard shard;
  Int64 dim;
  Int64 all_rows;     // active rows of the call
  const Int64* rows;  // index of each active row in the outputs, or null: identity

  const void* hidden;           // hidden, weight: of type kX
  const Int64* hidden_offsets;  // offset of each active row, or null: row * hidden_row_stride
  Int64 hidden_row_stride;
  Int64 hidden_col_stride;
  const void* weight;
  Int64 weight_row_stride;
  Int64 weight_col_stride;
  const void* bias;  // of bias_type, a TypeCode
  Int64 bias_type;
  Int64 bias_stride;
  const Int64* target;               // 0 <= target < vocab; -1: another rank has it
  const float* inverse_temperature;  // or null: 1

  // Upstream gradients (backward), each 0 where null. Where kEntropy is -1, grad_entropy tells
  // whether the entropy has one.
  const float* grad;
  const float* grad_entropy;
  const float* grad_lse;

  // Outputs of the forward, inputs of the backward; indexed through rows. The forward leaves out
  // those that are null, logp excepted; where kEntropy is -1, entropy tells whether it is asked
  // for.
  float* logp;
  float* row_max;
  float* row_log_sum;
  float* entropy;    // backward: read with grad_entropy
  float* lse;        // forward alone
  LogitStats stats;  // likewise; where kStats is -1, argmax tells whether they are asked for

  // Logits of the first kept_segments segments, written by the forward where not null and read by
  // the backward in place of their products; in panels as kept_offset says. Over all rows that are
  // active in the forward: the backward may have fewer.
  float* kept;
  Int64 kept_segments;
  Int64 kept_pitch;          // columns from one segment's first to the next one's
  Int64 kept_rows;           // rows that are active in the forward
  const Int64* kept_places;  // of each row among them, or null: the same

  // Outputs of the backward, left out where null. Hidden's is indexed through rows.
  void* grad_hidden;  // of grad_hidden_type, kX or fp32, as grad_weight_type
  Int64 grad_hidden_type;
  Int64 grad_hidden_row_stride;
  Int64 grad_hidden_col_stride;
  void* grad_weight;
  Int64 grad_weight_type;
  bool accumulates;  // grad_weight is fp32, to which its sums are added
  Int64 grad_weight_row_stride;
  Int64 grad_weight_col_stride;
  void* grad_bias;  // of bias_type
  Int64 grad_bias_stride;

  // Of a backward over a chunk of rows: dense sums of the rows before, [vocab][dim], or null; sums
  // of lanes, [vocab][P], read and written, or null; the lane that its first row has.
  const float* weight_before;
  float* bias_lanes;
  Int64 first_lane;
  bool goes_on;  // there were chunks before
};

// Arguments of every entry point: the operands, and what the host sets for each strip: rows
// [first_row, first_row + num_rows) of the active ones. Lane arrays and panels start at first_row,
// a multiple of P. Workspace is 64-byte aligned.
struct LinearLogpCpuArgs : LinearLogpCpuOperands {
  Int64 first_row;
  Int64 num_rows;
  Int64 padded_rows;      // num_rows rounded up to whole panels
  Int64 panels_per_item;  // panels of rows that an item of fwd_main or bwd_dz covers

  float* hidden_by_row;  // [padded_rows/P][dim][P]: lanes are rows (null where none reads it)
  float* hidden_by_col;  // [ceil(dim/P)][padded_rows][P]: lanes are columns (backward, or null)
  Int64* lane_target;    // [padded_rows] target, -1 in padding and of another rank
  float* lane_scale;     // [padded_rows] inverse temperature, 1 in padding

  // [padded_rows], backward. Gradients are those of a raw logit before the cap: times the
  // inverse temperature and the logit scale; 0 in padding.
  float* lane_max;
  float* lane_log_sum;
  float* lane_grad_target;  // of the target's column, but for what the entropy's adds
  float* lane_grad_rest;    // grad_lse - grad, which is times p in the other columns
  float* lane_grad_entropy;
  float* lane_entropy;

  // Forward: partials [leaves][padded_rows].
  float* partial_max;
  float* partial_sum;
  float* partial_moment;             // with entropy alone
  LogitStatsPartials partial_stats;  // with statistics alone
  float* lane_target_logit;          // [padded_rows]

  // Backward: the wave is columns [wave_begin, wave_begin + wave_cols) of the vocabulary, whole
  // leaves of the segment that begins at segment_begin.
  Int64 segment_begin;
  Int64 wave_begin;
  Int64 wave_cols;
  Int64 kept_wave;         // column of `kept` where the wave begins; -1: it is not kept
  Int64 padded_wave;       // rows of the wave's panel matrices: whole leaves, at least wave_cols
  Int64 total_rows;        // all_rows rounded up to whole panels
  float* weight_wave;      // [ceil(dim/P)][padded_wave][P]
  float* grad_logits;      // [padded_rows/P][padded_wave][P]: dZ
  float* grad_hidden_sum;  // [ceil(dim/P)][total_rows][P], over all strips: of the segment
  Int64 num_folds;         // sums that lie before grad_hidden_sum and that it joins: bwd_fold_dh
  float* grad_weight_sum;  // [ceil(dim/P)][padded_wave][P]
  float* grad_bias_sum;    // [padded_wave][P]: a sum a lane
};

// Entry points: items [begin, end) with a scratch of the calling thread, 64-byte aligned.
using LinearLogpCpuStep = void (*)(const LinearLogpCpuArgs* args, Int64 begin, Int64 end,
                                   void* scratch);

// Floats of scratch that fwd_main needs: a block of weights, logits of a leaf, bias of a leaf.
constexpr Int64 linear_logp_cpu_scratch_floats(const LinearLogpCpuTile& tile,
                                               Int64 panels_per_item) {
  return tile.leaf * tile.block + panels_per_item * tile.leaf * tile.panel() + tile.leaf;
}

}  // namespace rlk
