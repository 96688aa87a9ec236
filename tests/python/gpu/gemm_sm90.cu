// SPDX-License-Identifier: Apache-2.0
// The sm_90a loop with the plainest epilogue, for its test: C = A * B^T in fp32.
// Macros: X (2 bf16, 3 fp16), ROWS, STAGES, PING_PONG, DYNAMIC, CLUSTER, A_LANES, B_LANES, TAIL.
#include "common/cuda/loop_sm90.cuh"

namespace rlk {

struct Shape {
  static constexpr int kRows = ROWS, kCols = 192, kBoxes = 1, kStages = STAGES, kGroups = 2;
  static constexpr bool kPingPong = PING_PONG, kDynamic = DYNAMIC;
  static constexpr int kCluster = CLUSTER;
};
constexpr Major kMajorA = A_LANES ? Major::kLanes : Major::kTerms;
constexpr Major kMajorB = B_LANES ? Major::kLanes : Major::kTerms;
using Loop = LoopSm90<X, Shape, kMajorA, kMajorB>;

struct GemmArgs {
  float* c;  // [m][n]
  int m, n, k, group_rows;
  unsigned* counter;
};

struct Store {
  const GemmArgs& g;
  static constexpr bool kLoads = false;
  static constexpr int kTailCols = TAIL;
  RLK_DEVICE TileSource source(TilePosition at) const {
    return {static_cast<int>(at.row) * Loop::kRows, static_cast<int>(at.col) * Loop::kCols};
  }
  RLK_DEVICE int num_cols(TilePosition at) const { return g.n - source(at).lane_b; }
  RLK_DEVICE void begin(Loop&, TilePosition) {}
  RLK_DEVICE void end(Loop& tile, TilePosition at) {
    unrolled<Loop::kRowsOfThread>([&](auto i) {
      const int row = static_cast<int>(at.row) * Loop::kRows + tile.row(i);
#pragma unroll
      for (int j = 0; j < Loop::kPairsOfThread; ++j) {
        const int col = static_cast<int>(at.col) * Loop::kCols + tile.col(j);
        float* const to = g.c + Int64{row} * g.n + col;
        if (row < g.m && col < g.n) to[0] = tile.at(i, j, 0);
        if (row < g.m && col + 1 < g.n) to[1] = tile.at(i, j, 1);
      }
    });
  }
};

extern __shared__ __align__(1024) unsigned char stages[];

}  // namespace rlk

extern "C" __global__ void __launch_bounds__(rlk::Loop::kThreads, 1)
    gemm(const __grid_constant__ rlk::GemmArgs g, const __grid_constant__ rlk::TensorMap a,
         const __grid_constant__ rlk::TensorMap b) {
  using namespace rlk;
  __shared__ Loop::Shared shared;
  const Raster raster(ceil_div(g.m, Loop::kRowsOfCluster), ceil_div(g.n, Loop::kCols), g.group_rows);
  Store store{g};
  Loop::run({a, b, g.k, raster, g.counter}, shared, stages, store);
}
