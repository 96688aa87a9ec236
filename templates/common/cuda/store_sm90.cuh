// SPDX-License-Identifier: Apache-2.0
// A tile of LoopSm90 to memory and back.
#pragma once

#include "common/cuda/loop_sm90.cuh"
#include "common/cuda/tile.h"

namespace rlk {

// Where a tile goes: its first element, and its real rows and columns.
struct PlaceSm90 {
  void* first;
  int num_rows, num_cols;
};

// By way of shared memory, each warp by itself in kSm90SlabBytes of `slabs`: 16 rows of 128 bytes
// at a time, whose chunks of 16 bytes are swizzled so that no bank is asked twice.
class SlabSm90 {
 public:
  // Stores a tile as elements of kType. Of its rows and columns the first num_rows and num_cols are
  // real; `row_start(row)` gives where a row's column 0 lies; aligned: rows start at 16 bytes and
  // are of whole 16 bytes.
  template <int kType, class Loop, class RowStart>
  static RLK_DEVICE void store(Loop& tile, unsigned slabs, int num_rows, int num_cols, bool aligned,
                               RowStart row_start) {
    store<kType>(tile, slabs, num_rows, num_cols, aligned, row_start, [&](auto i) {
      return [&tile, i](int j) { return float2{tile.at(i, j, 0), tile.at(i, j, 1)}; };
    });
  }
  // What `turn` makes of it: turn(i) for the thread's row i gives pair(j) of the columns of
  // at(i, j, .). It is asked anew for each slab, and the accumulators stay as they are: to change
  // them first, or to keep what turn(i) gives for several rows, would take registers.
  // kCopies: of a thread at once, from shared memory to where it goes.
  template <int kType, int kCopies = 4, class Loop, class RowStart, class Turn>
  static RLK_DEVICE void store(Loop& tile, unsigned slabs, int num_rows, int num_cols, bool aligned,
                               RowStart row_start, Turn turn) {
    constexpr int kSize = sizeof(typename Element<kType>::Type);
    constexpr int kPairs = min(128 / kSize, Loop::kCols) / 8;  // of a thread in a slab
    const int lane = thread_index() % 32;
    const unsigned slab = slabs + (thread_index() / 32 - 4) * kSm90SlabBytes;
    unrolled<Loop::kRowsOfThread / 2>([&](auto m) {
#pragma unroll
      for (int first = 0; first < Loop::kPairsOfThread; first += kPairs) {
        __syncwarp();  // what lay in the slab was read
        const unsigned own = opaque(slab + lane / 4 * 128);
        const unsigned turn_of_lane = opaque(swizzle(lane / 4) << 4);
        unrolled<2>([&](auto half) {
          const auto pair = turn(Constant<2 * decltype(m)::kIndex + decltype(half)::kIndex>());
#pragma unroll
          for (int j = 0; j < kPairs; ++j) {
            const unsigned byte = (j * 8 * kSize & ~15) + (lane % 4 * 2 * kSize & 16);
            const unsigned place = own + (byte ^ turn_of_lane) + (lane % 4 * 2 * kSize & 15);
            const float2 x = pair(first + j);
            Element<kType>::store_pair(place + half * 1024, x.x, x.y);
          }
        });
        __syncwarp();
        // The warp has 16 rows of each 64 of the tile, a thread two of them that are 8 apart.
        const int row0 = opaque(tile.row(0) - thread_index() % 32 / 4 + m * 64);
        copy<kType, kPairs * 8, kCopies>(slab, row0, opaque(first * 8), num_rows, num_cols, aligned,
                                         row_start);
      }
    });
  }

 private:
  static RLK_DEVICE unsigned swizzle(int row) { return (row & 3) << 1 | (row >> 2 & 1); }

  // 16 rows of kCols columns, which are the tile's from row0 and col0 on.
  template <int kType, int kCols, int kCopies, class RowStart>
  static RLK_DEVICE void copy(unsigned slab, int row0, int col0, int num_rows, int num_cols,
                              bool aligned, RowStart row_start) {
    using Stored = typename Element<kType>::Type;
    constexpr int kSize = sizeof(Stored), kChunkCols = 16 / kSize, kChunks = kCols / kChunkCols;
    const int lane = thread_index() % 32;
    if (aligned) {
      constexpr int kRowsAtOnce = 32 / kChunks;
      const int chunk = lane % kChunks, col = col0 + chunk * kChunkCols;
#pragma unroll kCopies
      for (int i = 0; i < 16 / kRowsAtOnce; ++i) {
        const int row = i * kRowsAtOnce + lane / kChunks;
        unsigned x[4];
        ld_shared(x, slab + row * 128 + ((chunk ^ swizzle(row & 7)) << 4));
        if (row0 + row < num_rows && col < num_cols) st_global(row_start(row0 + row) + col, x);
      }
      return;
    }
#pragma unroll 1
    for (int i = lane; i < 16 * kCols; i += 32) {
      const int row = i / kCols, col = i % kCols, chunk = col / kChunkCols;
      const unsigned from = slab + row * 128 + ((chunk ^ swizzle(row & 7)) << 4);
      const Stored x = ld_shared_one<Stored>(from + col % kChunkCols * kSize);
      if (row0 + row < num_rows && col0 + col < num_cols) row_start(row0 + row)[col0 + col] = x;
    }
  }
};

// Calls use(accumulator, x) for each accumulator, x being what lies at its place in fp32 memory, or
// 0 beyond the real rows and columns.
template <class Loop, class RowStart, class Use>
RLK_DEVICE void for_each_in_memory_sm90(Loop& tile, int num_rows, int num_cols, RowStart row_start,
                                        Use use) {
  unrolled<Loop::kRowsOfThread>([&](auto i) {
    const int row = tile.row(i), col0 = tile.col(0);
    const float* const from = row_start(row) + col0;
    const int cols = row < num_rows ? num_cols - col0 : 0;
#pragma unroll
    for (int j = 0; j < Loop::kPairsOfThread; ++j) {
      use(tile.at(i, j, 0), ld_global_if(from + j * 8, j * 8 < cols));
      use(tile.at(i, j, 1), ld_global_if(from + j * 8 + 1, j * 8 + 1 < cols));
    }
  });
}

}  // namespace rlk
