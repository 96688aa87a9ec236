// SPDX-License-Identifier: Apache-2.0
// Storing of a tile's accumulators in a storage type.
#pragma once

#include "common/cuda/element.cuh"

namespace rlk {

// What of a tile is stored, and how.
struct StoreBounds {
  int num_rows, num_cols;  // real ones of the tile
  bool aligned;            // 16 bytes at once: col_stride is 1, rows start and end on 16 bytes
  Int64 col_stride;
};

// u[t] of lane s becomes u[s] of lane t, among the four lanes of a quad.
RLK_DEVICE void transpose_quad(unsigned (&u)[4]) {
  const bool odd = threadIdx.x & 1, high = threadIdx.x & 2;
#pragma unroll
  for (int t = 0; t < 4; t += 2) {
    const unsigned got = __shfl_xor_sync(kFullWarp, odd ? u[t] : u[t + 1], 1);
    u[t] = odd ? got : u[t];
    u[t + 1] = odd ? u[t + 1] : got;
  }
#pragma unroll
  for (int t = 0; t < 2; ++t) {
    const unsigned got = __shfl_xor_sync(kFullWarp, high ? u[t] : u[t + 2], 2);
    u[t] = high ? got : u[t];
    u[t + 2] = high ? u[t + 2] : got;
  }
}

// Stores a tile of LoopSm80 or LoopFp32, of type kX. `row_start(row)` gives where a row's column 0
// is. All threads of a warp take part; rows and columns beyond the bounds are left out.
template <int kX, class Loop, class RowStart>
RLK_DEVICE void store_tile(Loop& tile, const StoreBounds& bounds, RowStart row_start) {
  using T = Element<kX>::Type;
  const int q = threadIdx.x % 4;
#pragma unroll
  for (int i = 0; i < Loop::kRowsOfThread; ++i) {
    const int row = tile.row(i);
    const bool real = row < bounds.num_rows;
    T* const to = real ? row_start(row) : nullptr;
    if (!bounds.aligned) {
      if (!real) continue;
#pragma unroll
      for (int j = 0; j < Loop::kPairsOfThread; ++j) {
        const int col = tile.col(j);
        if (col < bounds.num_cols) {
          to[col * bounds.col_stride] = Element<kX>::from_float(tile.at(i, j, 0));
        }
        if (col + 1 < bounds.num_cols) {
          to[(col + 1) * bounds.col_stride] = Element<kX>::from_float(tile.at(i, j, 1));
        }
      }
    } else if constexpr (kX == kFloat32) {
#pragma unroll
      for (int j = 0; j < Loop::kPairsOfThread; j += 2) {
        if (!real || tile.col(j) >= bounds.num_cols) continue;
        *reinterpret_cast<float4*>(to + tile.col(j)) =
            float4{tile.at(i, j, 0), tile.at(i, j, 1), tile.at(i, j + 1, 0), tile.at(i, j + 1, 1)};
      }
    } else {
#pragma unroll
      for (int j = 0; j < Loop::kPairsOfThread; j += 4) {
        unsigned u[4];
#pragma unroll
        for (int t = 0; t < 4; ++t) {
          u[t] = Element<kX>::pair(tile.at(i, j + t, 0), tile.at(i, j + t, 1));
        }
        transpose_quad(u);
        const int col = tile.col(j) - 2 * q + 8 * q;
        if (!real || col >= bounds.num_cols) continue;
        *reinterpret_cast<uint4*>(to + col) = uint4{u[0], u[1], u[2], u[3]};
      }
    }
  }
}

}  // namespace rlk
