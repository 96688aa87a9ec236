// SPDX-License-Identifier: Apache-2.0
// The tiles of a product by the loop of sm_90a: what happens before and after a tile's product.
#pragma once

namespace rlk {

constexpr DetGemmSm90Tile kSm90Tile = det_gemm_sm90_tile(kTile);
struct Sm90Shape {
  static constexpr int kRows = kSm90Tile.rows, kCols = kSm90Tile.cols, kBoxes = kSm90Tile.boxes;
  static constexpr int kStages = kSm90Tile.stages, kGroups = kSm90Tile.groups;
  static constexpr bool kPingPong = kSm90Tile.ping_pong, kDynamic = kSm90Tile.dynamic;
};
// Where it is not used it has some type: the compiler reads what follows in any case.
template <int kA, int kB>
using Sm90Loop = LoopSm90<kUsesSm90Loop ? kX : kBfloat16, Sm90Shape,
                          kA ? Major::kLanes : Major::kTerms, kB ? Major::kLanes : Major::kTerms>;
using AnySm90Loop = Sm90Loop<0, 0>;  // for what no layout changes

// What a warpgroup keeps of its tile in shared memory: the loop leaves no registers for it.
struct Sm90Values {
  float bias[AnySm90Loop::kCols];
  int row0, col0;  // of the tile, in out
};

// The epilogue: bias, rounding, and the store by way of shared memory, each warp by itself: 16 rows
// of 128 bytes at a time, whose chunks of 16 bytes are swizzled so that no bank is asked twice.
template <class Loop, bool kAdds>
struct StoreSm90 {
  static constexpr bool kLoads = kAdds;
  const Args& a;
  Sm90Values (&values)[AnySm90Loop::kGroups];
  unsigned slabs;  // in shared memory; kDetGemmSlabBytes a warp

  RLK_DEVICE int first_col(TilePosition at) const { return static_cast<int>(at.col) * Loop::kCols; }
  RLK_DEVICE int num_cols(TilePosition) const { return Loop::kCols; }

  RLK_DEVICE void begin(Loop& tile, TilePosition at) {
    Sm90Values& own = values[tile.group()];
    tile.sync_group();  // the last tile's values were read
    if (tile.thread_of_group() == 0) {
      own.row0 = static_cast<int>(at.row) * Loop::kRows;
      own.col0 = first_col(at);
    }
    if (a.bias) {
#pragma unroll 1
      for (int i = tile.thread_of_group(); i < Loop::kCols; i += 128) {
        const Int64 col = min(Int64{first_col(at)} + i, a.num_cols - 1);
        own.bias[i] = read_float(a.bias, col * a.bias_stride, a.bias_type);
      }
    }
    tile.sync_group();
  }

  RLK_DEVICE void load(Loop& tile, TilePosition) {
    const Int64 pitch = a.num_cols;
    unrolled<Loop::kRowsOfThread>([&](auto i) {
      const Sm90Values& own = values[tile.group()];
      const int row = own.row0 + tile.row(i), col0 = own.col0 + tile.col(0);
      const float* const from = static_cast<const float*>(a.out) + row * pitch + col0;
      const bool any = out_kind(a) == 2 && row < a.num_rows;
      const int num_cols = any ? static_cast<int>(min<Int64>(pitch - col0, Loop::kCols)) : 0;
#pragma unroll
      for (int j = 0; j < Loop::kPairsOfThread; ++j) {
        tile.at(i, j, 0) = ld_global_if(from + j * 8, j * 8 < num_cols);
        tile.at(i, j, 1) = ld_global_if(from + j * 8 + 1, j * 8 + 1 < num_cols);
      }
    });
  }

  RLK_DEVICE void end(Loop& tile, TilePosition) {
    if (a.bias) {
#pragma unroll
      for (int j = 0; j < Loop::kPairsOfThread; ++j) {
        const float2 bias =
            *reinterpret_cast<const float2*>(&values[tile.group()].bias[tile.col(j)]);
        unrolled<Loop::kRowsOfThread>([&](auto i) {
          tile.at(i, j, 0) = tile.at(i, j, 0) + bias.x;
          tile.at(i, j, 1) = tile.at(i, j, 1) + bias.y;
        });
      }
    }
    if (out_kind(a) != 0) {
      store<kFloat32>(tile);
    } else {
      store<kX>(tile);
    }
  }

 private:
  template <int kType>
  RLK_DEVICE void store(Loop& tile) {
    using Stored = Element<kType>::Type;
    constexpr int kSize = sizeof(Stored), kChunkCols = 16 / kSize;
    constexpr int kPairs = min(128 / kSize, Loop::kCols) / 8;  // of a thread in a slab
    const Int64 pitch = a.num_cols;
    const int lane = thread_index() % 32;
    const unsigned slab = slabs + (thread_index() / 32 - 4) * kDetGemmSlabBytes;
    // The warp has 16 rows of each 64 of the tile, a thread two of them that are 8 apart.
    const int row0 = values[tile.group()].row0 + (tile.row(0) - lane / 4);
    const int col0 = values[tile.group()].col0;
    Slab<Stored, kPairs * 8> to{static_cast<Stored*>(a.out) + row0 * pitch + col0, pitch,
                                static_cast<int>(min<Int64>(a.num_rows - row0, Loop::kRows)),
                                static_cast<int>(min<Int64>(pitch - col0, Loop::kCols))};
    unrolled<Loop::kRowsOfThread / 2>([&](auto m) {
#pragma unroll
      for (int first = 0; first < Loop::kPairsOfThread; first += kPairs) {
        __syncwarp();  // what lay in the slab was read
        const unsigned own = opaque(slab + lane / 4 * 128);
        const unsigned turn = opaque(swizzle(lane / 4) << 4);
#pragma unroll
        for (int j = 0; j < kPairs; ++j) {
          const unsigned byte = (j * 8 * kSize & ~15) + (lane % 4 * 2 * kSize & 16);
          const unsigned place = own + (byte ^ turn) + (lane % 4 * 2 * kSize & 15);
          unrolled<2>([&](auto half) {
            Element<kType>::store_pair(place + half * 1024, tile.at(2 * m + half, first + j, 0),
                                       tile.at(2 * m + half, first + j, 1));
          });
        }
        __syncwarp();
        to.copy(slab, opaque(m * 64), opaque(first * 8), pitch % kChunkCols == 0);
      }
    });
  }

  static RLK_DEVICE unsigned swizzle(int row) { return (row & 3) << 1 | (row >> 2 & 1); }

  // 16 rows of a tile from a slab to memory.
  template <class Stored, int kCols>
  struct Slab {
    Stored* out;
    Int64 pitch;
    int num_rows, num_cols;

    RLK_DEVICE void copy(unsigned slab, int row0, int col0, bool aligned) const {
      constexpr int kSize = sizeof(Stored), kChunkCols = 16 / kSize, kChunks = kCols / kChunkCols;
      const int lane = thread_index() % 32;
      if (aligned) {
        constexpr int kRowsAtOnce = 32 / kChunks;
        const int chunk = lane % kChunks, col = col0 + chunk * kChunkCols;
        Stored* const to = out + (row0 + lane / kChunks) * pitch + col;
#pragma unroll
        for (int i = 0; i < 16 / kRowsAtOnce; ++i) {
          const int row = i * kRowsAtOnce + lane / kChunks;
          unsigned x[4];
          ld_shared(x, slab + row * 128 + ((chunk ^ swizzle(row & 7)) << 4));
          if (row0 + row < num_rows && col < num_cols) st_global(to + i * kRowsAtOnce * pitch, x);
        }
        return;
      }
#pragma unroll 1
      for (int i = lane; i < 16 * kCols; i += 32) {
        const int row = i / kCols, col = i % kCols, chunk = col / kChunkCols;
        const unsigned from = slab + row * 128 + ((chunk ^ swizzle(row & 7)) << 4);
        const Stored x = ld_shared_one<Stored>(from + col % kChunkCols * kSize);
        if (row0 + row < num_rows && col0 + col < num_cols) {
          out[(row0 + row) * pitch + col0 + col] = x;
        }
      }
    }
  };
};

template <int kA, int kB>
RLK_DEVICE void multiply_sm90(const Args& a, const DetGemmMaps& maps) {
  using Loop = Sm90Loop<kA, kB>;
  // Where it is not known, sums begin with the zeros that load() gives: the same bits.
  using Store = StoreSm90 < Loop, kOut == 2 || kOut<0>;
  __shared__ typename Loop::Shared barriers;
  __shared__ Sm90Values values[Loop::kGroups];
  const Raster raster(ceil_div(a.num_rows, Loop::kRows), ceil_div(a.num_cols, Loop::kCols),
                      a.group_tiles);
  Store store{a, values, shared_address(stages) + Loop::kSharedBytes};
  Loop::run({maps.a, maps.b, 0, static_cast<int>(a.num_terms), raster, a.next_tile, a.a_box_rows},
            barriers, stages, store);
}

}  // namespace rlk
