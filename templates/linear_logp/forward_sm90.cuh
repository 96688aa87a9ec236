// SPDX-License-Identifier: Apache-2.0
// The forward's main step on sm_90a for 16-bit types; see kernel.cuh.
//
// Tiles of logits stay in registers: each is folded into the leaf's partial of every row while the
// block's other warpgroup multiplies.
#pragma once

#include "linear_logp/merge.cuh"

namespace rlk {

constexpr LinearLogpSm90Tile kSm90Tile = kLinearLogpSm90Tiles[kTile < 0 ? 0 : kTile];
struct Sm90Shape {
  static constexpr int kRows = kSm90Tile.rows, kCols = kLogpLeaf, kBoxes = 1;
  static constexpr int kStages = kSm90Tile.stages, kGroups = 2;
  static constexpr int kCluster = kSm90Tile.cluster;
  static constexpr bool kPingPong = kSm90Tile.ping_pong, kDynamic = kSm90Tile.dynamic;
};
// Where it is not used it has some type: the compiler reads what follows in any case.
using Sm90Loop = LoopSm90<kUsesSm90Loop ? kX : kBfloat16, Sm90Shape>;

// Values of a warpgroup's rows and columns.
struct FoldShared {
  float scale[Sm90Loop::kRowsOfGroup];
  int target[Sm90Loop::kRowsOfGroup];  // column of the tile, or -1
  float bias[Sm90Loop::kCols];
};

// The epilogue of the loop.
struct Fold {
  const Args& a;
  FoldShared (&shared)[2];
  int num_rows;  // of the strip
  static constexpr bool kLoads = false;

  RLK_DEVICE LogpLeaf cols_of(TilePosition at) const { return leaves_of(a).at(at.col); }
  RLK_DEVICE TileSource source(TilePosition at) const {
    return {static_cast<int>(a.first_row) + static_cast<int>(at.row) * Sm90Loop::kRows,
            cols_of(at).begin};
  }
  RLK_DEVICE int num_cols(TilePosition at) const { return cols_of(at).cols; }

  RLK_DEVICE void begin(Sm90Loop& tile, TilePosition at) {
    FoldShared& s = shared[tile.group()];
    tile.sync_group();  // the last tile's values were read
    const int t = tile.thread_of_group();
    const LogpLeaf leaf = cols_of(at);
    if (t < Sm90Loop::kRowsOfGroup) {
      const int strip_row = static_cast<int>(at.row) * Sm90Loop::kRows + tile.first_row() + t;
      float scale = 1.0f;
      int target = -1;
      if (strip_row < num_rows) {
        const Int64 row = call_row(a, a.first_row + strip_row);
        scale = scale_of(a, row);
        const Int64 id = target_of(a, row);
        if (id >= leaf.begin && id < leaf.begin + leaf.cols) {
          target = static_cast<int>(id - leaf.begin);
        }
      }
      s.scale[t] = scale;
      s.target[t] = target;
    }
    if (has_stats(a)) set_stats_place(tile, at, leaf);
    if (!a.bias.data) return;
#pragma unroll 1
    for (int i = t; i < Sm90Loop::kCols; i += 128) {
      const Int64 col = min(Int64{leaf.begin} + i, vocab(a) - 1);
      s.bias[i] = read_float(a.bias.data, col * a.bias.stride, a.bias.type);
    }
  }

  RLK_DEVICE void end(Sm90Loop& tile, TilePosition at) {
    const FoldShared& s = shared[tile.group()];
    tile.sync_group();
    make_logits(tile, s, at);
    if (has_stats(a)) {
      unrolled<Sm90Loop::kRowsOfThread>([&](auto i) { fold_stats(tile, i, row_max(tile, i)); });
    }
    unrolled<Sm90Loop::kRowsOfThread>([&](auto i) {
      const int strip_row = static_cast<int>(at.row) * Sm90Loop::kRows + tile.row(i);
      const float max = row_max(tile, i);
      const Sums sums = row_sums(tile, i, max);
      if (strip_row >= num_rows) return;
      if (thread_index() % 4 == 0) {
        const Int64 to = at.col * a.strip_rows + strip_row;
        a.partial_max[to] = max;
        a.partial_sum[to] = sums.sum;
        if (kMayHaveEntropy && a.partial_moment) a.partial_moment[to] = sums.moment;
      }
      const int element = tile.element(s.target[tile.row(i) - tile.first_row()]);
      if (element < 0) return;
      float z = tile.at(i, 0, 0);
#pragma unroll
      for (int j = 0; j < Sm90Loop::kPairsOfThread; ++j) {
        const float z0 = tile.at(i, j, 0), z1 = tile.at(i, j, 1);
        z = element == 2 * j ? z0 : z;
        z = element == 2 * j + 1 ? z1 : z;
      }
      a.target_logit[strip_row] = z;
    });
  }

 private:
  // Each step in a pass of its own over the accumulators, left out where it changes nothing.
  RLK_DEVICE void make_logits(Sm90Loop& tile, const FoldShared& s, TilePosition at) {
    if (a.bias.data) {
#pragma unroll
      for (int j = 0; j < Sm90Loop::kPairsOfThread; ++j) {
        const float2 bias = *reinterpret_cast<const float2*>(&s.bias[tile.col(j)]);
        unrolled<Sm90Loop::kRowsOfThread>([&](auto i) {
          tile.at(i, j, 0) = tile.at(i, j, 0) + bias.x;
          tile.at(i, j, 1) = tile.at(i, j, 1) + bias.y;
        });
      }
    }
    if (kLogitScale != 0 && a.logit_scale != 1.0f) {
      for_each(tile, [&](auto, float z) { return z * a.logit_scale; });
    }
    if (is_capped(a)) {
      for_each(tile, [&](auto, float z) { return capped(a, z); });
    }
    if (a.temperature.data || a.inverse_temperature != 1.0f) {
      float scale[Sm90Loop::kRowsOfThread];
      unrolled<Sm90Loop::kRowsOfThread>(
          [&](auto i) { scale[i] = s.scale[tile.row(i) - tile.first_row()]; });
      for_each(tile, [&](auto i, float z) { return z * scale[i]; });
    }
    const int num_cols = this->num_cols(at);
    if (num_cols >= kLogpLeaf) return;
#pragma unroll
    for (int j = 0; j < Sm90Loop::kPairsOfThread; ++j) {
      unrolled<Sm90Loop::kRowsOfThread>([&](auto i) {
        if (tile.col(j) >= num_cols) tile.at(i, j, 0) = -infinity();
        if (tile.col(j) + 1 >= num_cols) tile.at(i, j, 1) = -infinity();
      });
    }
  }

  template <class Change>
  static RLK_DEVICE void for_each(Sm90Loop& tile, Change change) {
    unrolled<Sm90Loop::kRowsOfThread>([&](auto i) {
#pragma unroll
      for (int j = 0; j < Sm90Loop::kPairsOfThread; ++j) {
        tile.at(i, j, 0) = change(i, tile.at(i, j, 0));
        tile.at(i, j, 1) = change(i, tile.at(i, j, 1));
      }
    });
  }

  template <class Index>
  static RLK_DEVICE float row_max(Sm90Loop& tile, Index i) {
    float max = -infinity();
#pragma unroll
    for (int j = 0; j < Sm90Loop::kPairsOfThread; ++j) {
      // A NaN is passed over here and found by the sum.
      max = max_f32(max, max_f32(tile.at(i, j, 0), tile.at(i, j, 1)));
    }
    max = max_f32(max, shfl_xor(max, 1));
    return max_f32(max, shfl_xor(max, 2));
  }

  // Where a warpgroup's tile has its statistics: in memory, as the epilogue leaves no registers.
  struct StatsPlace {
    Int64 to;  // of the tile's first row in the partials
    int num_rows, begin, cols;
  };
  static RLK_DEVICE volatile StatsPlace& stats_place(int group) {
    __shared__ volatile StatsPlace places[2];
    return places[group];
  }
  RLK_DEVICE void set_stats_place(Sm90Loop& tile, TilePosition at, const LogpLeaf& leaf) {
    if (tile.thread_of_group() != 0) return;
    volatile StatsPlace& place = stats_place(tile.group());
    const int first_row = static_cast<int>(at.row) * Sm90Loop::kRows;
    place.to = at.col * a.strip_rows + first_row;
    place.num_rows = num_rows - first_row;
    place.begin = leaf.begin;
    place.cols = leaf.cols;
  }
  template <class Index>
  RLK_DEVICE void fold_stats(Sm90Loop& tile, Index i, float max) {
    const volatile StatsPlace& place = stats_place(tile.group());
    const LeafStats stats = leaf_stats<2 * Sm90Loop::kPairsOfThread, 2, 8, Sm90Loop::kRowLanes>(
        {place.begin, place.cols}, tile.col(0), max,
        [&](int k) { return tile.at(i, k / 2, k % 2); });
    if (tile.row(i) >= place.num_rows || thread_index() % 4 != 0) return;
    store_stats(a.partial_stats, place.to + tile.row(i), stats);
  }

  struct Sums {
    float sum = 0.0f;     // of exp(z - max)
    float moment = 0.0f;  // of exp(z - max) * (z - max), with entropy
  };
  template <class Index>
  static RLK_DEVICE Sums row_sums(Sm90Loop& tile, Index i, float max) {
    const float base = base_of(max);
    Sums s;
#pragma unroll
    for (int j = 0; j < Sm90Loop::kPairsOfThread; ++j) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const float below = tile.at(i, j, e) - base;
        const float term = exp_f32(below);
        s.sum = s.sum + term;
        if constexpr (kMayHaveEntropy) s.moment = fma_rn(term, exponent_factor(below), s.moment);
      }
    }
    s.sum = s.sum + shfl_xor(s.sum, 1);
    s.sum = s.sum + shfl_xor(s.sum, 2);
    if constexpr (kMayHaveEntropy) {
      s.moment = s.moment + shfl_xor(s.moment, 1);
      s.moment = s.moment + shfl_xor(s.moment, 2);
    }
    return s;
  }
};

RLK_DEVICE void forward_main_sm90(const Args& a, const LinearLogpCudaMaps& maps) {
  __shared__ Sm90Loop::Shared barriers;
  __shared__ FoldShared values[2];
  const Int64 left = min(num_active(a) - a.first_row, a.strip_rows);
  const int num_rows = left > 0 ? static_cast<int>(left) : 0;
  const Raster raster(ceil_div(num_rows, Sm90Loop::kRowsOfCluster), leaves_of(a).count(),
                      a.group_tiles);
  const TensorMap& hidden = num_active(a) < a.num_rows ? maps.gathered : maps.hidden;
  Fold fold{a, values, num_rows};
  Sm90Loop::run({hidden, maps.weight, static_cast<int>(dim(a)), raster, a.next_tile}, barriers,
                stages, fold);
}

}  // namespace rlk
