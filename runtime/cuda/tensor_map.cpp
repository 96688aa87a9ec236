// SPDX-License-Identifier: Apache-2.0
// Calls cuTensorMapEncodeTiled; its enumerations are named here.
#include "runtime/cuda/tensor_map.hpp"

#include <fmt/format.h>

namespace rlk::runtime::cuda {
namespace {

constexpr int k_type_float16 = 6, k_type_bfloat16 = 9;
constexpr int k_no_interleave = 0, k_swizzle_128 = 3, k_l2_promotion_256 = 3, k_fill_zeros = 0;

}  // namespace

void make_tensor_map(void* map, Driver& driver, DeviceOrdinal device, DType dtype,
                     const MatrixView& matrix, int box_rows) {
  const DeviceGuard guard(driver, device);
  const std::uint64_t sizes[] = {static_cast<std::uint64_t>(matrix.num_cols),
                                 static_cast<std::uint64_t>(matrix.num_rows)};
  const std::uint64_t strides_bytes[] = {static_cast<std::uint64_t>(matrix.pitch) * 2};
  const std::uint32_t box[] = {64, static_cast<std::uint32_t>(box_rows)};
  const std::uint32_t element_strides[] = {1, 1};
  const Result code = driver.table().tensor_map_encode_tiled(
      map, dtype == DType::f16 ? k_type_float16 : k_type_bfloat16, 2,
      const_cast<void*>(matrix.data), sizes, strides_bytes, box, element_strides, k_no_interleave,
      k_swizzle_128, k_l2_promotion_256, k_fill_zeros);
  if (code != result::success) {
    driver.fail(code, "cuTensorMapEncodeTiled",
                fmt::format("{} x {} elements, {} from row to row", matrix.num_rows,
                            matrix.num_cols, matrix.pitch));
  }
}

}  // namespace rlk::runtime::cuda
