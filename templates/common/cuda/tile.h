// SPDX-License-Identifier: Apache-2.0
// Shared by host and kernels, so it includes nothing.
#pragma once

namespace rlk {

// A block computes a tile of rows x cols with sums cut into stages of k terms.
struct CudaTile {
  int rows, cols, k, stages, warp_rows, warp_cols;
  int blocks;  // of an SM, that registers are left for
  constexpr int threads() const { return 32 * warp_rows * warp_cols; }
  constexpr int shared_bytes(int element_bytes) const {
    return (rows + cols) * k * stages * element_bytes;
  }
};

constexpr int kSm90SlabBytes = 2048;  // of a warp, through which a tile of sm_90a is stored

}  // namespace rlk
