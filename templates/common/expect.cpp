// SPDX-License-Identifier: Apache-2.0
// Checks of one tensor of a call.
#include "templates/common/expect.hpp"

#include <algorithm>

namespace rlk {
namespace {

std::string of_argument(std::string_view of) {
  return of.empty() ? "" : fmt::format(" (that of {{{}}})", of);
}

}  // namespace

void Given::fail(std::string expected, std::string got) const {
  throw InvalidArgument(Fault{std::string(call.op->name), std::string(argument),
                              std::move(expected), std::move(got)});
}

void expect_present(const Given& given) {
  if (!given.tensor.present()) given.fail("a tensor", "None");
}

void expect_device(const Given& given, std::string_view of) {
  if (given.tensor.device == given.call.device) return;
  given.fail("device " + text(given.call.device) + of_argument(of), text(given.tensor.device));
}

void expect_dtype(const Given& given, DType dtype, std::string_view of) {
  if (given.tensor.dtype == dtype) return;
  given.fail(fmt::format("dtype {}{}", name(dtype), of_argument(of)),
             std::string(name(given.tensor.dtype)));
}

void expect_dtype_or_float32(const Given& given, DType dtype) {
  if (given.tensor.dtype == dtype || given.tensor.dtype == DType::f32) return;
  given.fail(fmt::format("dtype {}{}", name(dtype), dtype == DType::f32 ? "" : " or float32"),
             std::string(name(given.tensor.dtype)));
}

void expect_floating(const Given& given, std::string_view besides) {
  if (is_floating(given.tensor.dtype)) return;
  given.fail(fmt::format("{}a floating dtype", besides), std::string(name(given.tensor.dtype)));
}

void expect_integers(const Given& given) {
  if (is_integer(given.tensor.dtype)) return;
  given.fail("an integer dtype", std::string(name(given.tensor.dtype)));
}

void expect_mask(const Given& given) {
  const DType dtype = given.tensor.dtype;
  if (dtype == DType::boolean || is_integer(dtype) || is_floating(dtype)) return;
  given.fail("a bool, integer or floating dtype", std::string(name(dtype)));
}

void expect_storage(const Given& given) {
  if (is_storage(given.tensor.dtype)) return;
  given.fail("dtype float32, bfloat16 or float16", std::string(name(given.tensor.dtype)));
}

void expect_shape(const Given& given, std::span<const std::int64_t> shape, std::string_view of) {
  if (std::ranges::equal(given.tensor.dims(), shape)) return;
  fail_shape(given, text(shape) + of_argument(of));
}

void fail_shape(const Given& given, const std::string& shape) {
  given.fail("shape " + shape, text(given.tensor.dims()));
}

}  // namespace rlk
