// SPDX-License-Identifier: Apache-2.0
// Descriptions of matrices by which sm_90a copies boxes of them into shared memory.
#pragma once

#include "runtime/cuda/driver.hpp"
#include "runtime/dtype.hpp"

#include <cstddef>
#include <cstdint>

namespace rlk::runtime::cuda {

// A matrix of 16-bit elements whose rows are contiguous and start on whole 16 bytes.
struct MatrixView {
  const void* data = nullptr;
  std::int64_t num_rows = 0, num_cols = 0;
  std::int64_t pitch = 0;  // elements from row to row
};

// Fills 128 bytes, 64-byte aligned, with a map of boxes of box_rows x 64, swizzled in rows of 128
// bytes; zeros outside of the matrix. dtype: bf16 or f16. On any thread, one that has no context
// yet too. Throws CallError where the driver refuses.
void make_tensor_map(void* map, Driver& driver, DeviceOrdinal device, DType dtype,
                     const MatrixView& matrix, int box_rows);

}  // namespace rlk::runtime::cuda
