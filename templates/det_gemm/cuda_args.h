// SPDX-License-Identifier: Apache-2.0
// What the CUDA kernels of det_gemm and their host code agree on: tiles and arguments. Included by
// kernel.cuh, which has no other headers than templates, so this file includes no more.
#pragma once

#include "common/cuda/copy.h"
#include "common/cuda/tensor_map.h"
#include "common/cuda/tile.h"

namespace rlk {

// What is stored: values of kOut.
enum DetGemmOut {
  kOutOfInputs = 0,  // the type of the inputs
  kOutFloat32 = 1,
  kOutAdded = 2,  // fp32, what is there being the first term of the sums
};

// The loops of common/cuda/: of fp32, and of 16-bit types.
enum DetGemmLoop { kDetGemmFp32 = 1, kDetGemmSm80 = 2, kDetGemmSm90 = 4 };

// Values of kTile, and the loops that have them. Results do not depend on it.
struct DetGemmTile {
  const char* name;
  int rows, cols;
  int loops;
  double cost;  // of a unit of its area, against the largest tile's
};
constexpr DetGemmTile kDetGemmTiles[] = {
    {"128x192", 128, 192, kDetGemmSm90, 1.0},  // in a kernel's name it is left out
    {"128x256", 128, 256, kDetGemmSm90, 1.025},
    {"64x128", 64, 128, kDetGemmSm90 | kDetGemmFp32, 1.15},
    {"64x32", 64, 32, kDetGemmSm90, 1.9},
    {"64x64", 64, 64, kDetGemmSm90 | kDetGemmSm80 | kDetGemmFp32, 1.5},
    {"256x128", 256, 128, kDetGemmSm80, 1.0},
    {"128x128", 128, 128, kDetGemmFp32, 1.0},
    {"128x192-cluster", 128, 192, kDetGemmSm90, 1.0},
};
constexpr int kDetGemmNumTiles = sizeof(kDetGemmTiles) / sizeof(DetGemmTile);
constexpr int kDetGemmSmall = 4;  // the one that all loops have

// b_lanes: whether b runs along its lanes, of which boxes of sm_90a have 64.
constexpr bool det_gemm_has_tile(DetGemmLoop loop, int tile, bool b_lanes) {
  return tile >= 0 && tile < kDetGemmNumTiles && (kDetGemmTiles[tile].loops & loop) != 0 &&
         (!b_lanes || kDetGemmTiles[tile].cols % 64 == 0);
}
// That of the generic variant.
constexpr int det_gemm_first_tile(DetGemmLoop loop) {
  return loop == kDetGemmFp32 ? 6 : loop == kDetGemmSm80 ? 5 : 0;
}

// shared_limit: most shared bytes a block of the target may have (99, 163 or 227 KiB).
constexpr CudaTile det_gemm_cuda_tile(DetGemmLoop loop, int tile, int shared_limit) {
  const auto& t = kDetGemmTiles[tile < 0 ? det_gemm_first_tile(loop) : tile];
  return loop == kDetGemmFp32        ? CudaTile{t.rows, t.cols, 32, 3, 4, 2, 1}
         : t.rows == 64              ? CudaTile{t.rows, t.cols, 64, 4, 2, 2, 1}
         : shared_limit >= 227 << 10 ? CudaTile{t.rows, t.cols, 64, 4, 4, 2, 1}
         : shared_limit >= 163 << 10 ? CudaTile{t.rows, t.cols, 64, 3, 4, 2, 1}
                                     : CudaTile{t.rows, t.cols, 64, 2, 4, 2, 1};
}

// A tile as the loop of sm_90a takes it (common/cuda/loop_sm90.cuh).
struct DetGemmSm90Tile {
  int rows, cols, boxes, stages, groups;
  bool ping_pong, dynamic;
  int cluster = 1;  // blocks that have one tile below the other and share b's panels
  constexpr int threads() const { return 128 * (1 + groups); }
  constexpr int shared_bytes() const {
    return (rows + cols) * 64 * boxes * stages * 2 + groups * 4 * kSm90SlabBytes;
  }
};
constexpr DetGemmSm90Tile det_gemm_sm90_tile(int tile) {
  switch (tile) {
    case 1:
      return {128, 256, 1, 4, 2, false, true};
    case 2:
      return {64, 128, 2, 4, 1, false, false};
    case 3:
      return {64, 32, 2, 8, 1, false, false};
    case 4:
      return {64, 64, 4, 3, 1, false, false};
    case 7:
      return {128, 192, 1, 5, 2, true, false, 2};
    default:
      return {128, 192, 1, 5, 2, true, true};
  }
}

// A matrix of type kX: lanes are rows of a, columns of b. What memory runs along is contiguous,
// 16-byte aligned, and of whole 16 bytes, filled up with zeros.
struct DetGemmMatrix {
  const void* data;
  long long pitch;  // elements from lane to lane, or along the lanes from term to term
  int along_lanes;
};

// Argument of the step main.
struct DetGemmCudaArgs {
  long long num_rows, num_cols, num_terms;
  DetGemmMatrix a, b;
  const void* bias;  // or null
  long long bias_stride;
  int bias_type;        // a TypeCode
  void* out;            // [num_rows][num_cols], 16-byte aligned
  int out_kind;         // a DetGemmOut; read where kOut is -1, else equal to it
  int group_tiles;      // rows of tiles in a group of the raster
  int a_box_rows;       // sm_90a: of a's boxes along the terms; else a tile's
  unsigned* next_tile;  // sm_90a: counter of the launch, 0 before it; null where tiles are few
};

// Argument of the step main besides; read by the loop of sm_90a alone.
struct DetGemmMaps {
  TensorMap a, b;
};

}  // namespace rlk
