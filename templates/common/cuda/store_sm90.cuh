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

// The first 64 rows of a warpgroup's tile. Code for these alone, run again after next_rows(), is
// half of that for 128, for a copy of half of the accumulators: where time is not spent.
template <class Loop>
class FirstRowsSm90 {
 public:
  static constexpr int kRowsOfThread = 2, kPairsOfThread = Loop::kPairsOfThread;
  static constexpr int kCols = Loop::kCols;
  RLK_DEVICE explicit FirstRowsSm90(Loop& tile) : tile_(tile) {}
  RLK_DEVICE int row(int i) const { return tile_.row(i); }
  RLK_DEVICE int col(int j) const { return tile_.col(j); }
  RLK_DEVICE float& at(int i, int j, int e) { return tile_.at(i, j, e); }

 private:
  Loop& tile_;
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
    const unsigned slab = slabs + (thread_index() / 32 - 4) * kSm90SlabBytes;
    unrolled<Loop::kRowsOfThread / 2>([&](auto m) {
#pragma unroll
      for (int first = 0; first < Loop::kPairsOfThread; first += kPairs) {
        __syncwarp();  // what lay in the slab was read
        unrolled<2>([&](auto half) {
          const auto pair = turn(Constant<2 * decltype(m)::kIndex + decltype(half)::kIndex>());
          fill<kType, kPairs>(slab + half * 1024, [&](int j) { return pair(first + j); });
        });
        __syncwarp();
        // The warp has 16 rows of each 64 of the tile, a thread two of them that are 8 apart.
        const int row0 = opaque(tile.row(0) - thread_index() % 32 / 4 + m * 64);
        copy<kType, kPairs * 8, kCopies>(slab, row0, first * 8, num_rows, num_cols, aligned,
                                         row_start);
      }
    });
  }

 private:
  // By which a row's chunks change places, in bytes: of a sum of powers of two it is the xor.
  static constexpr RLK_DEVICE unsigned swizzle(unsigned row) {
    return (row & 3) << 5 | (row & 4) << 2;
  }

  // 8 rows, of each of which four neighbouring threads have pairs 0 to kPairs - 1 in turn.
  template <int kType, int kPairs, class Pair>
  static RLK_DEVICE void fill(unsigned slab, Pair pair) {
    const unsigned lane = static_cast<unsigned>(thread_index()) % 32;
    if constexpr (kType == kFloat32) {
      const unsigned row = lane / 4, own = slab + row * 128 + (lane % 4 * 8 ^ swizzle(row));
#pragma unroll
      for (int j = 0; j < kPairs; ++j) {
        const float2 x = pair(j);
        st_shared_v2_f32(own ^ j * 32, x.x, x.y);
      }
    } else {
      static_assert(kPairs % 4 == 0);
      // The instruction takes four matrices of 8 x 8, a row of them from each thread's address.
      const unsigned row = lane % 8, own = slab + row * 128 + (lane / 8 * 16 ^ swizzle(row));
#pragma unroll
      for (int j = 0; j < kPairs; j += 4) {
        unsigned x[4];
#pragma unroll
        for (int k = 0; k < 4; ++k) {
          const float2 xy = pair(j + k);
          x[k] = Element<kType>::pack(xy.x, xy.y);
        }
        stmatrix_x4(own ^ j * 16, x);
      }
    }
  }

  // 16 rows of kCols columns, which are the tile's from row0 and col0 on.
  template <int kType, int kCols, int kCopies, class RowStart>
  static RLK_DEVICE void copy(unsigned slab, int row0, int col0, int num_rows, int num_cols,
                              bool aligned, RowStart row_start) {
    using Stored = typename Element<kType>::Type;
    constexpr int kSize = sizeof(Stored), kChunkCols = 16 / kSize, kChunks = kCols / kChunkCols;
    const unsigned lane = static_cast<unsigned>(thread_index()) % 32;
    if (aligned) {
      constexpr int kRowsAtOnce = 32 / kChunks, kSteps = 16 / kRowsAtOnce;
      const unsigned row = lane / kChunks, chunk = lane % kChunks;
      const int first = row0 + static_cast<int>(row),
                col = col0 + static_cast<int>(chunk) * kChunkCols;
      const int rows = col < num_cols ? num_rows - first : 0;
      const unsigned from = slab + row * 128 + (chunk * 16 ^ swizzle(row));
      constexpr int kCopiesAtOnce = min(kCopies, kSteps);
#pragma unroll
      for (int step = 0; step < kSteps; step += kCopiesAtOnce) {
        unsigned x[kCopiesAtOnce][4];
#pragma unroll
        for (int i = 0; i < kCopiesAtOnce; ++i) {
          const int at = (step + i) * kRowsAtOnce;
          ld_shared(x[i], (from ^ swizzle(at)) + at * 128);
        }
#pragma unroll
        for (int i = 0; i < kCopiesAtOnce; ++i) {
          const int at = (step + i) * kRowsAtOnce;
          st_global_if(row_start(first + at) + col, x[i], at < rows);
        }
      }
      return;
    }
#pragma unroll 1
    for (unsigned i = lane; i < 16 * kCols; i += 32) {
      const unsigned row = i / kCols, col = i % kCols;
      const Stored x = ld_shared_one<Stored>(slab + row * 128 + (col * kSize ^ swizzle(row)));
      const int to_row = row0 + static_cast<int>(row), to_col = col0 + static_cast<int>(col);
      if (to_row < num_rows && to_col < num_cols) row_start(to_row)[to_col] = x;
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
