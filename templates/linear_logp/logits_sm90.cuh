// SPDX-License-Identifier: Apache-2.0
// Tiles of logits by the loop of sm_90a: what its epilogues in the forward and in the backward
// share.
#pragma once

#include "common/cuda/store_sm90.cuh"
#include "linear_logp/exponentials.cuh"
#include "linear_logp/logits.cuh"

namespace rlk {

constexpr LinearLogpSm90Tile kSm90Tile = RLK_BACKWARD ? linear_logp_sm90_grad_tile(kMayTakeLogits)
                                                      : linear_logp_sm90_tile(kTile, kKeep != 0);
struct Sm90Shape {
  static constexpr int kRows = kSm90Tile.rows, kCols = kLogpLeaf, kBoxes = 1;
  static constexpr int kStages = kSm90Tile.stages, kGroups = 2;
  static constexpr int kCluster = kSm90Tile.cluster;
  static constexpr bool kPingPong = kSm90Tile.ping_pong, kDynamic = kSm90Tile.dynamic;
};
// Where it is not used it has some type: the compiler reads what follows in any case.
constexpr int kSm90Type = kUsesSm90Loop ? kX : kBfloat16;
using Sm90Type = Element<kSm90Type>::Type;
using Sm90Loop = LoopSm90<kSm90Type, Sm90Shape>;

// Values of a warpgroup's rows and columns.
struct LogitsSm90Values {
  float scale[Sm90Loop::kRowsOfGroup];
  int target[Sm90Loop::kRowsOfGroup];  // column of the tile, or -1
  float bias[Sm90Loop::kCols];
};

// What an epilogue does with a tile before it has logits. Rows are active rows from first_row on.
class LogitsSm90 {
 public:
  const Args& a;
  LogitsSm90Values (&shared)[2];
  int first_row;
  const int& num_rows;
  static constexpr bool kLoads = false;
  // Of a segment's last leaf.
  static constexpr int kTailCols = kSegmentCols < 0 ? -1 : kSegmentCols % kLogpLeaf;

  // Columns of a tile: a leaf, of the vocabulary or of a backward's wave.
  RLK_DEVICE LogpLeaf cols_of(TilePosition at) const {
    if constexpr (RLK_BACKWARD) return leaf_of_wave(a, static_cast<int>(at.col));
    return leaves_of(a).at(at.col);
  }
  RLK_DEVICE TileSource source(TilePosition at) const {
    return {first_row + static_cast<int>(at.row) * Sm90Loop::kRows, cols_of(at).begin};
  }
  RLK_DEVICE int num_cols(TilePosition at) const { return cols_of(at).cols; }

  // The values of a tile, which all threads of the warpgroup may read after sync_group().
  RLK_DEVICE void load_values(Sm90Loop& tile, TilePosition at, const LogpLeaf& leaf) {
    LogitsSm90Values& s = shared[tile.group()];
    tile.sync_group();  // the last tile's values were read
    const int t = tile.thread_of_group();
    if (t < Sm90Loop::kRowsOfGroup) {
      const int tile_row = static_cast<int>(at.row) * Sm90Loop::kRows + tile.first_row() + t;
      float scale = 1.0f;
      int target = -1;
      if (tile_row < num_rows) {
        const Int64 row = call_row(a, first_row + tile_row);
        scale = scale_of(a, row);
        const Int64 col = column_of(a, target_of(a, row));
        if (col >= leaf.begin && col < leaf.begin + leaf.cols) {
          target = static_cast<int>(col - leaf.begin);
        }
      }
      s.scale[t] = scale;
      s.target[t] = target;
    }
    if (!adds_bias(leaf.cols)) return;
#pragma unroll 1
    for (int i = t; i < Sm90Loop::kCols; i += 128) {
      float bias = -0.0f;  // to which it adds nothing, -0 keeps its sign
      if (a.bias.data) {
        const Int64 col = min(Int64{leaf.begin} + i, vocab(a) - 1);
        bias = read_float(a.bias.data, col * a.bias.stride, a.bias.type);
      }
      s.bias[i] = i < leaf.cols || !ends_by_bias(a) ? bias : -infinity();
    }
  }
  // What lies beyond the columns is of others of the row, or 0: ends_by_bias() holds here too.
  RLK_DEVICE bool adds_bias(int num_cols) const { return a.bias.data || num_cols < kLogpLeaf; }

  // Each step in a pass of its own over the accumulators, left out where it changes nothing.
  RLK_DEVICE void make_logits(Sm90Loop& tile, const LogitsSm90Values& s, int num_cols) {
    start_logits(tile, s, num_cols);
    if (is_capped(a)) {
      for_each(tile, [&](auto, float z) { return capped(a, z); });
    }
    if (a.temperature.data || a.inverse_temperature != 1.0f) {
      float scale[Sm90Loop::kRowsOfThread];
      unrolled<Sm90Loop::kRowsOfThread>(
          [&](auto i) { scale[i] = s.scale[tile.row(i) - tile.first_row()]; });
      for_each(tile, [&](auto i, float z) { return z * scale[i]; });
    }
    if (!ends_by_bias(a)) set_tail(tile, num_cols, -infinity());
  }
  RLK_DEVICE void start_logits(Sm90Loop& tile, const LogitsSm90Values& s, int num_cols) {
    if (adds_bias(num_cols)) {
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
  }
  // What lies beyond the columns. Written as choices: out of branches the compiler makes them too,
  // which takes a tenth of a forward's compile.
  static RLK_DEVICE void set_tail(Sm90Loop& tile, int num_cols, float value) {
    if (num_cols >= kLogpLeaf) return;
#pragma unroll
    for (int j = 0; j < Sm90Loop::kPairsOfThread; ++j) {
      unrolled<Sm90Loop::kRowsOfThread>([&](auto i) {
        tile.at(i, j, 0) = tile.col(j) >= num_cols ? value : tile.at(i, j, 0);
        tile.at(i, j, 1) = tile.col(j) + 1 >= num_cols ? value : tile.at(i, j, 1);
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
};

}  // namespace rlk
