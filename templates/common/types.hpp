// SPDX-License-Identifier: Apache-2.0
// How host code names element types to kernels, and storage types in a kernel's name.
#pragma once

#include "jit/op.hpp"
#include "runtime/dtype.hpp"
#include "templates/common/type_codes.h"

#include <string_view>

namespace rlk {

constexpr int type_code(DType dtype) {
  if (dtype == DType::f32) return kFloat32;
  if (dtype == DType::bf16) return kBfloat16;
  if (dtype == DType::f16) return kFloat16;
  if (dtype == DType::f64) return kFloat64;
  const int bytes = static_cast<int>(size_bytes(dtype));
  const bool is_signed = dtype >= DType::i8 && dtype <= DType::i64;
  return (is_signed ? kSigned : kUnsigned) + bytes;  // bool is unsigned
}

// The constant of a template's storage type, which every variant has.
inline constexpr std::string_view k_type_words[] = {"none", "f32", "bf16", "f16"};
inline constexpr jit::ConstantDef k_type_constant{"x", "kX", k_type_words,
                                                  /*may_be_run_time=*/false};
inline constexpr int k_storage_codes[] = {kFloat32, kBfloat16, kFloat16};

}  // namespace rlk
