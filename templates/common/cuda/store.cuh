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

// Stores a tile of LoopSm80 or LoopFp32, of type kX, in `shared`, the loop's stages, and from there
// in short loops whose threads write side by side. `row_start(row)` gives where a row's column 0
// is. All threads of the block; rows and columns beyond the bounds are left out.
template <int kX, class Loop, class RowStart>
RLK_DEVICE void store_tile(Loop& tile, const StoreBounds& bounds, void* shared,
                           RowStart row_start) {
  using T = Element<kX>::Type;
  constexpr int kChunk = 16 / sizeof(T);
  constexpr int kPitch = Loop::kCols + kChunk;  // rows of a warp begin in different banks
  constexpr int kRowBytes = kPitch * sizeof(T);
  constexpr bool kOnce = Loop::kRows * kRowBytes <= Loop::kSharedBytes;
  constexpr int kRows = kOnce ? Loop::kRows : Loop::kRows / 2;  // at once: whole warps
  static_assert(kRows * kRowBytes <= Loop::kSharedBytes && kRows % Loop::kRowsOfWarp == 0);
  constexpr int kChunks = Loop::kCols / kChunk, kBatch = 4;
  static_assert(kRows * kChunks % (kBatch * Loop::kThreads) == 0);
  const T* const tile_in_shared = static_cast<const T*>(shared);

#pragma unroll 1
  for (int first = 0; first < Loop::kRows; first += kRows) {
    if (kOnce || static_cast<unsigned>(tile.row(0) - first) < kRows) {
      const unsigned own =
          shared_address(shared) + (tile.row(0) - first) * kRowBytes + tile.col(0) * int{sizeof(T)};
#pragma unroll
      for (int i = 0; i < Loop::kRowsOfThread; ++i) {
#pragma unroll
        for (int j = 0; j < Loop::kPairsOfThread; ++j) {
          const unsigned to = own + (tile.row(i) - tile.row(0)) * kRowBytes +
                              (tile.col(j) - tile.col(0)) * int{sizeof(T)};
          Element<kX>::store_pair(to, tile.at(i, j, 0), tile.at(i, j, 1));
        }
      }
    }
    __syncthreads();
    if (bounds.aligned) {
#pragma unroll 1
      for (unsigned item = thread_index(); item < kRows * kChunks;
           item += kBatch * Loop::kThreads) {
        uint4 chunks[kBatch];
#pragma unroll
        for (int b = 0; b < kBatch; ++b) {
          const unsigned at = item + b * Loop::kThreads;
          chunks[b] = *reinterpret_cast<const uint4*>(tile_in_shared + at / kChunks * kPitch +
                                                      at % kChunks * kChunk);
        }
#pragma unroll
        for (int b = 0; b < kBatch; ++b) {
          const unsigned at = item + b * Loop::kThreads;
          const int row = first + at / kChunks, col = at % kChunks * kChunk;
          if (row >= bounds.num_rows || col >= bounds.num_cols) continue;
          *reinterpret_cast<uint4*>(row_start(row) + col) = chunks[b];
        }
      }
    } else {
#pragma unroll 1
      for (unsigned at = thread_index(); at < kRows * Loop::kCols; at += Loop::kThreads) {
        const int row = first + at / Loop::kCols, col = at % Loop::kCols;
        if (row >= bounds.num_rows || col >= bounds.num_cols) continue;
        row_start(row)[col * bounds.col_stride] = tile_in_shared[at / Loop::kCols * kPitch + col];
      }
    }
    if (!kOnce) __syncthreads();
  }
}

// Calls use(accumulator, x) for each accumulator of a tile of LoopSm80 or LoopFp32, x being what
// lies at its place in fp32 memory, or 0 beyond the real rows and columns.
template <class Loop, class RowStart, class Use>
RLK_DEVICE void for_each_in_memory(Loop& tile, int num_rows, int num_cols, RowStart row_start,
                                   Use use) {
#pragma unroll
  for (int i = 0; i < Loop::kRowsOfThread; ++i) {
    const int row = tile.row(i), cols = row < num_rows ? num_cols : 0;
    const float* const from = row_start(row);
#pragma unroll
    for (int j = 0; j < Loop::kPairsOfThread; ++j) {
      const int col = tile.col(j);
      use(tile.at(i, j, 0), col < cols ? from[col] : 0.0f);
      use(tile.at(i, j, 1), col + 1 < cols ? from[col + 1] : 0.0f);
    }
  }
}

}  // namespace rlk
