// SPDX-License-Identifier: Apache-2.0
// A tile of a product by a block of its own: the loops of fp32 and of mma.sync.
#pragma once

namespace rlk {

using Args = DetGemmCudaArgs;
using T = Element<kX>::Type;

constexpr DetGemmLoop kLoop = kX == kFloat32 ? kDetGemmFp32 : kDetGemmSm80;
constexpr CudaTile kTileShape = det_gemm_cuda_tile(kLoop, kTile, RLK_SHARED_LIMIT);
using TileShape = Shape<kTileShape.rows, kTileShape.cols, kTileShape.k, kTileShape.stages,
                        kTileShape.warp_rows, kTileShape.warp_cols, (kOut >= 0)>;
constexpr int kChunk = 16 / sizeof(T);  // elements that one copy moves

RLK_DEVICE int out_kind(const Args& a) { return kOut >= 0 ? kOut : a.out_kind; }

template <int kA, int kB>
struct LoopOf {
  using Type = Loops<kX, TileShape>::KK;
};
template <>
struct LoopOf<0, 1> {
  using Type = Loops<kX, TileShape>::KL;
};
template <>
struct LoopOf<1, 0> {
  // With more stages that of mma.sync spills.
  struct FewStages : TileShape {
    static constexpr int kStages = kX == kFloat32 ? TileShape::kStages : 2;
  };
  using Type = Loops<kX, FewStages>::LK;
};
template <>
struct LoopOf<1, 1> {
  using Type = Loops<kX, TileShape>::LL;
};

// Where each lane of a tile starts, for operands along the terms.
struct LaneTables {
  const void* a[kTileShape.rows];
  const void* b[kTileShape.cols];
};

// The lanes of a tile from `lane0` on, `num_lanes` of which are real, as a loop's panel takes them.
template <class Panel, bool kAlongLanes>
RLK_DEVICE typename Panel::Source source_of(const DetGemmMatrix& matrix, const void** table,
                                            int table_size, Int64 lane0, Int64 num_lanes) {
  const T* const data = static_cast<const T*>(matrix.data);
  if constexpr (kAlongLanes) {
    const Int64 padded = ceil_div(num_lanes, kChunk) * kChunk;
    return {data + lane0, matrix.pitch * Int64{sizeof(T)},
            static_cast<int>(min<Int64>(padded, table_size))};
  } else {
#pragma unroll 1
    for (int i = threadIdx.x; i < table_size; i += kTileShape.threads()) {
      table[i] = data + (lane0 + min<Int64>(i, num_lanes - 1)) * matrix.pitch;
    }
    return {table};
  }
}

template <class Loop>
RLK_DEVICE void add_bias(Loop& tile, const Args& a, Int64 col0) {
#pragma unroll
  for (int j = 0; j < Loop::kPairsOfThread; ++j) {
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      const Int64 col = min(col0 + tile.col(j) + e, a.num_cols - 1);
      const float bias = read_float(a.bias, col * a.bias_stride, a.bias_type);
#pragma unroll
      for (int i = 0; i < Loop::kRowsOfThread; ++i) tile.at(i, j, e) = tile.at(i, j, e) + bias;
    }
  }
}

// Where the block's tile lies in the result.
struct TilePlace {
  Int64 row0, col0;
  int rows, cols;
};
RLK_DEVICE TilePlace tile_place(const Args& a) {
  unsigned block;
  asm volatile("mov.u32 %0, %%ctaid.x;"
               : "=r"(block));  // anew: the loop leaves no registers for it
  const Raster raster(ceil_div(a.num_rows, kTileShape.rows), ceil_div(a.num_cols, kTileShape.cols),
                      a.group_tiles);
  const TilePosition at = raster.at(block);
  const Int64 row0 = at.row * kTileShape.rows, col0 = at.col * kTileShape.cols;
  return {row0, col0, static_cast<int>(min<Int64>(a.num_rows - row0, kTileShape.rows)),
          static_cast<int>(min<Int64>(a.num_cols - col0, kTileShape.cols))};
}

template <int kType, class Loop>
RLK_DEVICE void store(Loop& tile, const Args& a, const TilePlace& at) {
  using Stored = Element<kType>::Type;
  const Int64 pitch = a.num_cols;
  Stored* const to = static_cast<Stored*>(a.out) + at.row0 * pitch + at.col0;
  store_tile<kType>(tile, {at.rows, at.cols, pitch % (16 / Int64{sizeof(Stored)}) == 0, 1}, stages,
                    [&](int row) { return to + row * pitch; });
}

template <int kA, int kB>
RLK_DEVICE void multiply_tile(const Args& a) {
  using Loop = LoopOf<kA, kB>::Type;
  __shared__ LaneTables tables;
  Loop tile;
  tile.zero();
  {
    const TilePlace at = tile_place(a);
    const auto of_a = source_of<typename Loop::PanelA, kA>(a.a, tables.a, Loop::kRows, at.row0,
                                                           a.num_rows - at.row0);
    const auto of_b = source_of<typename Loop::PanelB, kB>(a.b, tables.b, Loop::kCols, at.col0,
                                                           a.num_cols - at.col0);
    __syncthreads();
    if (out_kind(a) == 2) {
      const float* const out = static_cast<const float*>(a.out) + at.row0 * a.num_cols + at.col0;
      for_each_in_memory(
          tile, at.rows, at.cols, [&](int row) { return out + row * a.num_cols; },
          [](float& sum, float x) { sum = x; });
    }
    tile.run(of_a, of_b, static_cast<int>(a.num_terms), stages);
  }
  const TilePlace at = tile_place(a);
  if (a.bias) add_bias(tile, a, at.col0);
  if (kX == kFloat32 || out_kind(a) != 0) {
    store<kFloat32>(tile, a, at);
  } else {
    store<kX>(tile, a, at);
  }
}

}  // namespace rlk
