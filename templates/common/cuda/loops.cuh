// SPDX-License-Identifier: Apache-2.0
// The loops of all products: which one a type and a target take, and what blocks of each need.
#pragma once

#include "common/cuda/loop_fp32.cuh"
#include "common/cuda/loop_sm80.cuh"
#include "common/cuda/loop_sm90.cuh"
#include "common/cuda/tile.h"

namespace rlk {

// A CudaTile as a type, which a loop takes. kUnrolled: the loop of fp32 writes out the terms of a
// stage, for up to 10 % of its time and half more code; generic kernels, which ship, do not.
template <int kRows_, int kCols_, int kK_, int kStages_, int kWarpRows_, int kWarpCols_,
          bool kUnrolled_>
struct Shape {
  static constexpr bool kUnrolled = kUnrolled_;
  static constexpr int kRows = kRows_, kCols = kCols_, kK = kK_, kStages = kStages_;
  static constexpr int kWarpRows = kWarpRows_, kWarpCols = kWarpCols_;
};

// The loops of all products, by the type: A and B run along the terms (K) or along the lanes (L).
template <int kX, class S>
struct Loops {
  using KK = LoopSm80<kX, S, PanelAlongK, PanelAlongK>;
  using KL = LoopSm80<kX, S, PanelAlongK, PanelAlongLanes>;
  using LK = LoopSm80<kX, S, PanelAlongLanes, PanelAlongK>;
  using LL = LoopSm80<kX, S, PanelAlongLanes, PanelAlongLanes>;
};
template <class S>
struct Loops<kFloat32, S> {
  using KK = LoopFp32<S, PanelFp32AlongK, PanelFp32AlongK>;
  using KL = LoopFp32<S, PanelFp32AlongK, PanelFp32AlongLanes>;
  using LK = LoopFp32<S, PanelFp32AlongLanes, PanelFp32AlongK>;
  using LL = LoopFp32<S, PanelFp32AlongLanes, PanelFp32AlongLanes>;
};

// Whether 16-bit products take the loop of sm_90a.
constexpr bool kUsesSm90Loop = kHasWgmma && kX != kFloat32;

extern __shared__ __align__(kHasWgmma ? 1024 : 128) unsigned char stages[];

// Tile of this block in a grid of row_tiles * col_tiles blocks; see Args::group_tiles.
RLK_DEVICE TilePosition tile_position(Int64 row_tiles, Int64 col_tiles, int group_tiles) {
  return Raster(row_tiles, col_tiles, group_tiles).at(blockIdx.x);
}

}  // namespace rlk
