// SPDX-License-Identifier: Apache-2.0
// det_gemm on CUDA: out[r][c] = sum over k of a[r][k] * b[k][c] + bias[c].
//
// An element is one chain over k ascending in fp32, by the instructions and blocks of its loop
// (common/cuda/loop_*.cuh), the bias added to the sum, the result rounded once. Its bits follow
// from its row, column and terms alone: no tile, layout, grid or number of rows shows in it.
//
// Rendered before this text:
//   kX       type of a and b: 1 fp32, 2 bf16, 3 fp16; never -1
//   kK, kN   of the CPU alone. Sizes are arguments: known ones gain nothing here, and cost the loop
//            of sm_90a registers
//   kALanes, kBLanes  1: the operand runs along its lanes (rows of a, columns of b) in memory, 0:
//            along the terms, -1: either. There is an entry for each layout; those that the
//            constants exclude are empty
//   kOut     0: of type kX, 1: fp32, 2: fp32, added to what is there before the sum begins, -1: as
//            the argument says
//   kTile    index of kDetGemmTiles, or -1: the loop's first
// Macros:
//   RLK_SHARED_LIMIT  most shared bytes that a block of the target may have
//
// Steps in launch order:
//   rlk_det_gemm_fwd_pack  any x 256, CudaCopy          an operand needs a copy
//   rlk_det_gemm_fwd_main_<layout>  layout: kk, kl, lk, ll, of a and b, k along the terms, l
//                             along the lanes. DetGemmCudaArgs and DetGemmMaps.
//                             ceil(rows / tile.rows) * ceil(cols / tile.cols) blocks of
//                             tile.threads() with tile.shared_bytes(); sm_90a and 16 bits: any x
//                             tile.threads() with tile.shared_bytes(), of det_gemm_sm90_tile(), in
//                             its clusters
//
// Operations: 2 * rows * cols * terms. Memory: a and b once a tile of the other, out once.
#include "common/cuda/copy.cuh"
#include "common/cuda/loops.cuh"
#include "common/cuda/store.cuh"
#include "common/cuda/store_sm90.cuh"
#include "det_gemm/cuda_args.h"
#include "det_gemm/tile.cuh"
#include "det_gemm/tile_sm90.cuh"

namespace rlk {

constexpr int kMainThreads = kUsesSm90Loop ? AnySm90Loop::kThreads : kTileShape.threads();

template <int kA, int kB>
RLK_DEVICE void multiply(const Args& a, const DetGemmMaps& maps) {
  if constexpr ((kALanes < 0 || kALanes == kA) && (kBLanes < 0 || kBLanes == kB)) {
    if constexpr (kUsesSm90Loop) {
      multiply_sm90<kA, kB>(a, maps);
    } else {
      multiply_tile<kA, kB>(a);
    }
  }
}

}  // namespace rlk

extern "C" __global__ void __launch_bounds__(256)
    rlk_det_gemm_fwd_pack(const __grid_constant__ rlk::CudaCopy copy) {
  rlk::pack(copy);
}

#define RLK_MAIN(entry, a_lanes, b_lanes)                            \
  extern "C" __global__ void __launch_bounds__(rlk::kMainThreads, 1) \
      entry(const __grid_constant__ rlk::DetGemmCudaArgs a,          \
            const __grid_constant__ rlk::DetGemmMaps maps) {         \
    rlk::multiply<a_lanes, b_lanes>(a, maps);                        \
  }
RLK_MAIN(rlk_det_gemm_fwd_main_kk, 0, 0)
RLK_MAIN(rlk_det_gemm_fwd_main_kl, 0, 1)
RLK_MAIN(rlk_det_gemm_fwd_main_lk, 1, 0)
RLK_MAIN(rlk_det_gemm_fwd_main_ll, 1, 1)
