// SPDX-License-Identifier: Apache-2.0
// The step pack: copies rows of any strides into aligned, zero-padded ones.
#pragma once

#include "common/cuda/copy.h"
#include "common/cuda/ptx.cuh"

namespace rlk {

// One row of a copy, by all threads of the block.
template <class T>
RLK_DEVICE void pack_row(const CudaCopy& c, Int64 num_cols, Int64 from_offset, Int64 to_offset) {
  const T* const from = static_cast<const T*>(c.from) + from_offset;
  T* const to = static_cast<T*>(c.to) + to_offset;
#pragma unroll 1
  for (Int64 col = threadIdx.x; col < c.pitch; col += blockDim.x) {
    to[col] = col < num_cols ? from[col * c.col_stride] : T{};
  }
}

// Rows of which products read zeros beyond the active ones: a tile of them at least.
RLK_DEVICE Int64 filled_rows(Int64 num_active) {
  return num_active == 0 ? kCopyTileRows : ceil_div(num_active, kCopyTileRows) * kCopyTileRows;
}

// A block a row; any number of blocks.
RLK_DEVICE void pack(const CudaCopy& c) {
  const Int64 num_rows = c.num_active ? *c.num_active : c.num_rows;
  if (c.skipped_if_all && num_rows == c.num_rows) return;
  const Int64 filled = c.num_active ? min(filled_rows(num_rows), c.num_rows) : num_rows;
#pragma unroll 1
  for (Int64 to = blockIdx.x; to < filled; to += gridDim.x) {
    const Int64* const rows = opaque(c.rows);
    const Int64 num_cols = to < num_rows ? c.num_cols : 0;
    Int64 row = to >= num_rows ? 0 : rows ? rows[to] : to;
    Int64 from = 0;
#pragma unroll 1
    for (int axis = c.num_axes - 1; axis >= 0; --axis) {
      const Int64 rest = row / c.sizes[axis];
      from += (row - rest * c.sizes[axis]) * c.strides[axis];
      row = rest;
    }
    switch (opaque(c.element_bytes)) {
      case 1:
        pack_row<unsigned char>(c, num_cols, from, to * c.pitch);
        break;
      case 2:
        pack_row<unsigned short>(c, num_cols, from, to * c.pitch);
        break;
      case 4:
        pack_row<unsigned>(c, num_cols, from, to * c.pitch);
        break;
      case 8:
        pack_row<unsigned long long>(c, num_cols, from, to * c.pitch);
        break;
      default:
        pack_row<uint4>(c, num_cols, from, to * c.pitch);
    }
  }
}

}  // namespace rlk
