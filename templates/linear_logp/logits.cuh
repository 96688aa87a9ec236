// SPDX-License-Identifier: Apache-2.0
// A tile of logits of linear_logp, in registers: what the forward reduces and the backward turns
// into dZ.
#pragma once

#include "common/cuda/loop_fp32.cuh"
#include "common/cuda/loop_sm80.cuh"
#include "linear_logp/rows.cuh"

namespace rlk {

// A LinearLogpCudaTile as a type, which a loop takes.
template <int kRows_, int kCols_, int kK_, int kStages_, int kWarpRows_, int kWarpCols_>
struct Shape {
  static constexpr int kRows = kRows_, kCols = kCols_, kK = kK_, kStages = kStages_;
  static constexpr int kWarpRows = kWarpRows_, kWarpCols = kWarpCols_;
};

constexpr LinearLogpCudaTile kLogitsTile = linear_logp_cuda_logits_tile(kX, RLK_SHARED_LIMIT);
using LogitsShape = Shape<kLogitsTile.rows, kLogitsTile.cols, kLogitsTile.k, kLogitsTile.stages,
                          kLogitsTile.warp_rows, kLogitsTile.warp_cols>;
using T = Element<kX>::Type;

// The loops of all products, by the type: A and B run along the terms (K) or along the lanes (L).
template <int kX, class S>
struct Loops {
  using KK = LoopSm80<kX, S, PanelAlongK, PanelAlongK>;
  using KL = LoopSm80<kX, S, PanelAlongK, PanelAlongLanes>;
  using LL = LoopSm80<kX, S, PanelAlongLanes, PanelAlongLanes>;
};
template <class S>
struct Loops<kFloat32, S> {
  using KK = LoopFp32<S, PanelFp32AlongK, PanelFp32AlongK>;
  using KL = LoopFp32<S, PanelFp32AlongK, PanelFp32AlongLanes>;
  using LL = LoopFp32<S, PanelFp32AlongLanes, PanelFp32AlongLanes>;
};
using LogitsLoop = Loops<kX, LogitsShape>::KK;

extern __shared__ __align__(128) unsigned char stages[];

struct TilePosition {
  Int64 row, col;
};

// Tile of this block in a grid of row_tiles * col_tiles blocks; see Args::group_tiles.
RLK_DEVICE TilePosition tile_position(Int64 row_tiles, Int64 col_tiles, Int64 group_tiles) {
  const Int64 block = blockIdx.x;
  const Int64 group = block / (group_tiles * col_tiles);
  const Int64 within = block - group * group_tiles * col_tiles;
  const Int64 height = min(group_tiles, row_tiles - group * group_tiles);
  const Int64 col = within / height;
  return {group * group_tiles + (within - col * height), col};
}

// What a tile keeps in shared memory beside the stages.
struct LogitsShared {
  const void* hidden[kLogitsTile.rows];
  const void* weight[kLogitsTile.cols];
  float scale[kLogitsTile.rows];
  int target[kLogitsTile.rows];  // column of the tile, or -1
  float bias[kLogitsTile.cols];
  // Where the tile lies; kept here because the loop leaves no registers for it.
  Int64 row0, col0;
  int num_rows, num_cols;
};

// Fills `s` for active rows [row0, row0 + rows of a tile), of which num_rows are real, and the leaf
// from column col0 on. The others repeat a real one, and what they give is read by nothing.
RLK_DEVICE void load_tile_values(LogitsShared& s, const Args& a, Int64 row0, int num_rows,
                                 Int64 col0) {
  if (threadIdx.x == 0) {
    s.row0 = row0;
    s.col0 = col0;
    s.num_rows = num_rows;
    s.num_cols = static_cast<int>(min<Int64>(vocab(a) - col0, kLinearLogpLeaf));
  }
#pragma unroll 1
  for (int i = threadIdx.x; i < kLogitsTile.rows; i += kLogitsTile.threads()) {
    const Int64 active = row0 + min(i, num_rows - 1);
    const Int64 row = call_row(a, active);
    s.hidden[i] = hidden_row<T>(a, active);
    s.scale[i] = scale_of(a, row);
    const Int64 t = target_of(a, row);
    s.target[i] =
        t >= col0 && t < min(col0 + kLinearLogpLeaf, vocab(a)) ? static_cast<int>(t - col0) : -1;
  }
#pragma unroll 1
  for (int i = threadIdx.x; i < kLogitsTile.cols; i += kLogitsTile.threads()) {
    const Int64 col = min(col0 + i, vocab(a) - 1);
    s.weight[i] = static_cast<const T*>(a.weight) + col * a.weight_pitch;
    s.bias[i] = a.bias.data ? read_float(a.bias.data, col * a.bias.stride, a.bias.type) : 0.0f;
  }
  __syncthreads();
}

// The logit from the dot product. Softcap and logit scale belong here, before the temperature.
RLK_DEVICE float logit(float dot, float bias, float scale) { return (dot + bias) * scale; }

// Turns dot products into logits; columns beyond the vocabulary become -inf.
RLK_DEVICE void make_logits(LogitsLoop& tile, const LogitsShared& s) {
  float scale[LogitsLoop::kRowsOfThread];
#pragma unroll
  for (int i = 0; i < LogitsLoop::kRowsOfThread; ++i) scale[i] = s.scale[tile.row(i)];
#pragma unroll
  for (int j = 0; j < LogitsLoop::kPairsOfThread; ++j) {
    const float2 bias = *reinterpret_cast<const float2*>(&s.bias[tile.col(j)]);
#pragma unroll
    for (int i = 0; i < LogitsLoop::kRowsOfThread; ++i) {
      tile.at(i, j, 0) = logit(tile.at(i, j, 0), bias.x, scale[i]);
      tile.at(i, j, 1) = logit(tile.at(i, j, 1), bias.y, scale[i]);
    }
  }
  const int num_cols = s.num_cols;
  if (num_cols >= kLinearLogpLeaf) return;
#pragma unroll
  for (int j = 0; j < LogitsLoop::kPairsOfThread; ++j) {
#pragma unroll
    for (int i = 0; i < LogitsLoop::kRowsOfThread; ++i) {
      if (tile.col(j) >= num_cols) tile.at(i, j, 0) = -infinity();
      if (tile.col(j) + 1 >= num_cols) tile.at(i, j, 1) = -infinity();
    }
  }
}

}  // namespace rlk
