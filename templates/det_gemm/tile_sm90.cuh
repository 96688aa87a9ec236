// SPDX-License-Identifier: Apache-2.0
// The tiles of a product by the loop of sm_90a: what happens before and after a tile's product.
#pragma once

namespace rlk {

constexpr DetGemmSm90Tile kSm90Tile = det_gemm_sm90_tile(kTile);
struct Sm90Shape {
  static constexpr int kRows = kSm90Tile.rows, kCols = kSm90Tile.cols, kBoxes = kSm90Tile.boxes;
  static constexpr int kStages = kSm90Tile.stages, kGroups = kSm90Tile.groups;
  static constexpr int kCluster = kSm90Tile.cluster;
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

// The epilogue: bias, rounding, and the store.
template <class Loop, bool kAdds>
struct StoreSm90 {
  static constexpr bool kLoads = kAdds;
  static constexpr int kTailCols = 0;  // a few columns more take no time that shows
  const Args& a;
  Sm90Values (&values)[AnySm90Loop::kGroups];
  unsigned slabs;  // in shared memory

  static RLK_DEVICE TileSource source(TilePosition at) {
    return {static_cast<int>(at.row) * Loop::kRows, static_cast<int>(at.col) * Loop::kCols};
  }
  RLK_DEVICE int num_cols(TilePosition) const { return Loop::kCols; }

  RLK_DEVICE void begin(Loop& tile, TilePosition at) {
    Sm90Values& own = values[tile.group()];
    const TileSource from = source(at);
    tile.sync_group();  // the last tile's values were read
    if (tile.thread_of_group() == 0) {
      own.row0 = from.lane_a;
      own.col0 = from.lane_b;
    }
    if (a.bias) {
#pragma unroll 1
      for (int i = tile.thread_of_group(); i < Loop::kCols; i += 128) {
        const Int64 col = min(Int64{from.lane_b} + i, a.num_cols - 1);
        own.bias[i] = read_float(a.bias, col * a.bias_stride, a.bias_type);
      }
    }
    tile.sync_group();
  }

  RLK_DEVICE int load(Loop& tile, TilePosition) {
    const Place at = place(tile);
    for_each_in_memory_sm90(tile, out_kind(a) == 2 ? at.num_rows : 0, at.num_cols,
                            row_start<float>(tile), [](float& sum, float x) { sum = x; });
    return 1;
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
  struct Place {
    int num_rows, num_cols;
  };
  RLK_DEVICE Place place(Loop& tile) const {
    const Sm90Values& own = values[tile.group()];
    return {static_cast<int>(min<Int64>(a.num_rows - own.row0, Loop::kRows)),
            static_cast<int>(min<Int64>(a.num_cols - own.col0, Loop::kCols))};
  }
  template <class Stored>
  RLK_DEVICE auto row_start(Loop& tile) const {
    const Sm90Values& own = values[tile.group()];
    Stored* const out = static_cast<Stored*>(a.out) + own.row0 * a.num_cols + own.col0;
    return [out, pitch = a.num_cols](int row) { return out + row * pitch; };
  }

  template <int kType>
  RLK_DEVICE void store(Loop& tile) {
    using Stored = typename Element<kType>::Type;
    const Place at = place(tile);
    SlabSm90::store<kType>(tile, slabs, at.num_rows, at.num_cols,
                           a.num_cols % (16 / Int64{sizeof(Stored)}) == 0, row_start<Stored>(tile));
  }
};

template <int kA, int kB>
RLK_DEVICE void multiply_sm90(const Args& a, const DetGemmMaps& maps) {
  using Loop = Sm90Loop<kA, kB>;
  // Where it is not known, sums begin with the zeros that load() gives: the same bits.
  using Store = StoreSm90 < Loop, kOut == 2 || kOut<0>;
  __shared__ typename Loop::Shared barriers;
  __shared__ Sm90Values values[Loop::kGroups];
  const Raster raster(ceil_div(a.num_rows, Loop::kRowsOfCluster), ceil_div(a.num_cols, Loop::kCols),
                      a.group_tiles);
  Store store{a, values, shared_address(stages) + Loop::kSharedBytes};
  Loop::run({maps.a, maps.b, static_cast<int>(a.num_terms), raster, a.next_tile, a.a_box_rows},
            barriers, stages, store);
}

}  // namespace rlk
