// SPDX-License-Identifier: Apache-2.0
// What the CPU kernels of det_gemm and their host code agree on: tile shapes and arguments.
// Included by kernel_cpu.cpp, which has no other headers than templates.
#pragma once

#include "../common/type_codes.h"

namespace rlk {

using Int64 = __INT64_TYPE__;

// Shape of the register tile (tile_rows x tile_vectors vectors of vector_lanes floats), and the
// block: terms that are summed from zero before the sum joins its element, which fixes the order of
// additions.
struct DetGemmCpuTile {
  Int64 vector_lanes, tile_rows, tile_vectors, block;
  Int64 pack_rows;  // of an item of pack, whole tiles
  // Width of a panel: the columns of one register tile.
  constexpr Int64 panel() const { return vector_lanes * tile_vectors; }
};

// vector_lanes: 16 (x86-64-v4), 8 (x86-64-v3), 4 (x86-64-v2).
constexpr DetGemmCpuTile det_gemm_cpu_tile(Int64 vector_lanes) {
  return {vector_lanes, vector_lanes == 16 ? 8 : 4, 3, 192, 64};
}

// Strides count elements and may be zero or negative. Workspace is 64-byte aligned.
struct DetGemmCpuArgs {
  Int64 num_rows, num_cols, num_terms;
  Int64 type;  // of a and b: kX

  const void* a;  // null: ones
  Int64 a_row_stride, a_term_stride;
  const void* b;
  Int64 b_term_stride, b_col_stride;
  const void* bias;  // [num_cols] of bias_type, or null
  Int64 bias_stride, bias_type;
  void* out;  // [num_rows][num_cols] of out_type
  Int64 out_type;
  Int64 accumulates;  // 1: sums begin with what out holds, which is fp32

  // A strip of rows at once, as packed_a: [ceil(num_terms / B)][padded_rows][B], B being the block:
  // element (row, term) at (term / B * padded_rows + row) * B + term % B.
  Int64 first_row, strip_rows;
  Int64 padded_rows;  // strip_rows in whole tiles
  float* packed_a;
  Int64 rows_per_item, panels_per_item;  // of main; rows: whole tiles
};

// Entry points: items [begin, end) with a scratch of the calling thread, 64-byte aligned.
using DetGemmCpuStep = void (*)(const DetGemmCpuArgs* args, Int64 begin, Int64 end, void* scratch);

// Floats of scratch that main needs: blocks of b and sums of an item.
constexpr Int64 det_gemm_cpu_scratch_floats(const DetGemmCpuTile& tile, Int64 rows_per_item,
                                            Int64 panels_per_item) {
  return panels_per_item * (tile.block + rows_per_item) * tile.panel();
}

}  // namespace rlk
