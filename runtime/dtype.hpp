// SPDX-License-Identifier: Apache-2.0
// Element types of the tensors that cross the API. Kernels take the first three as storage.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace rlk {

enum class DType : std::uint8_t {
  f32,
  bf16,
  f16,
  f64,
  boolean,
  i8,
  i16,
  i32,
  i64,
  u8,
  u16,
  u32,
  u64,
  c64,  // these are named only to be refused
  c128,
  other,  // sub-byte, vector, ...
};

// The name that PyTorch and NumPy users know, as in error messages.
constexpr std::string_view name(DType dtype) {
  constexpr std::string_view names[] = {"float32", "bfloat16",  "float16",    "float64",
                                        "bool",    "int8",      "int16",      "int32",
                                        "int64",   "uint8",     "uint16",     "uint32",
                                        "uint64",  "complex64", "complex128", "another dtype"};
  return names[static_cast<int>(dtype)];
}

constexpr std::size_t size_bytes(DType dtype) {
  constexpr std::size_t sizes[] = {4, 2, 2, 8, 1, 1, 2, 4, 8, 1, 2, 4, 8, 8, 16, 0};
  return sizes[static_cast<int>(dtype)];
}

constexpr bool is_storage(DType dtype) { return dtype <= DType::f16; }
constexpr bool is_floating(DType dtype) { return dtype <= DType::f64; }
constexpr bool is_integer(DType dtype) { return dtype >= DType::i8 && dtype <= DType::u64; }

}  // namespace rlk
