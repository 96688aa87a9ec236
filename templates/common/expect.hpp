// SPDX-License-Identifier: Apache-2.0
// Checks of one tensor of a call, for all ops. Each throws InvalidArgument.
#pragma once

#include "jit/op.hpp"
#include "runtime/error.hpp"

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace rlk {

// Whether the elements lie side by side.
inline bool is_dense(const Tensor& tensor) {
  return tensor.num_elements() <= 1 || flat_stride(tensor.dims(), tensor.steps()) == 1;
}

// A tensor of a call, and what the caller knows it by.
struct Given {
  const jit::OpCall& call;
  const Tensor& tensor;
  std::string_view argument;

  [[noreturn]] void fail(std::string expected, std::string got) const;
};

void expect_present(const Given& given);

// That of the argument `of`.
void expect_device(const Given& given, std::string_view of);

void expect_floating(const Given& given, std::string_view besides = "");  // "a number or"
void expect_integers(const Given& given);
void expect_mask(const Given& given);     // bool, integer or floating
void expect_storage(const Given& given);  // float32, bfloat16 or float16

void expect_dtype(const Given& given, DType dtype, std::string_view of);  // that of `of`
void expect_dtype_or_float32(const Given& given, DType dtype);

// `of`: the argument whose shape it is; may be empty.
void expect_shape(const Given& given, std::span<const std::int64_t> shape,
                  std::string_view of = "");
// The shape in words, where it fits none of those allowed.
[[noreturn]] void fail_shape(const Given& given, const std::string& shape);

}  // namespace rlk
