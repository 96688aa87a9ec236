// SPDX-License-Identifier: Apache-2.0
// Our dtypes of results as DLPack's.
#pragma once

#include "python/bind/dlpack.hpp"
#include "runtime/dtype.hpp"

namespace rlk::bind {

// float32, bfloat16, float16 or int64.
inline dlpack::DLDataType dlpack_type(DType dtype) {
  const auto bits = static_cast<std::uint8_t>(8 * size_bytes(dtype));
  if (dtype == DType::i64) return {dlpack::kDLInt, bits, 1};
  return {dtype == DType::bf16 ? dlpack::kDLBfloat : dlpack::kDLFloat, bits, 1};
}

}  // namespace rlk::bind
