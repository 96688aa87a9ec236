// SPDX-License-Identifier: Apache-2.0
// Reads host tensors element by element: for arguments of one value per row, never for operands.
#include "runtime/read_values.hpp"

#include "runtime/error.hpp"

#include <bit>
#include <cmath>

namespace rlk {
namespace {

template <class Element, class Result, class Convert>
std::vector<Result> read_as(const Tensor& tensor, Convert convert) {
  std::vector<Result> values;
  values.reserve(static_cast<std::size_t>(tensor.num_elements()));
  const auto* data = static_cast<const Element*>(tensor.data);
  for_each_offset(tensor.dims(), {tensor.strides.data(), tensor.dims().size()},
                  [&](std::int64_t offset) { values.push_back(convert(data[offset])); });
  return values;
}

template <class Element>
std::vector<std::int64_t> integers(const Tensor& tensor) {
  return read_as<Element, std::int64_t>(
      tensor, [](Element value) { return static_cast<std::int64_t>(value); });
}

float from_bfloat16(std::uint16_t bits) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
}

float from_float16(std::uint16_t bits) {
  const int exponent = (bits >> 10) & 31;
  const int mantissa = bits & 1023;
  const float sign = bits & 0x8000 ? -1.0f : 1.0f;
  if (exponent == 31) return mantissa ? NAN : sign * INFINITY;
  if (exponent == 0) return sign * std::ldexp(static_cast<float>(mantissa), -24);
  return sign * std::ldexp(static_cast<float>(mantissa + 1024), exponent - 25);
}

}  // namespace

std::vector<std::int64_t> read_integers(const Tensor& tensor) {
  switch (tensor.dtype) {
    case DType::boolean:  // any byte but 0 is true
      return read_as<std::uint8_t, std::int64_t>(
          tensor, [](std::uint8_t value) { return std::int64_t{value != 0}; });
    case DType::u8:
      return integers<std::uint8_t>(tensor);
    case DType::i8:
      return integers<std::int8_t>(tensor);
    case DType::i16:
      return integers<std::int16_t>(tensor);
    case DType::i32:
      return integers<std::int32_t>(tensor);
    case DType::i64:
      return integers<std::int64_t>(tensor);
    case DType::u16:
      return integers<std::uint16_t>(tensor);
    case DType::u32:
      return integers<std::uint32_t>(tensor);
    case DType::u64:
      return integers<std::uint64_t>(tensor);
    default:
      throw Error(fmt::format("read_integers: got {}", name(tensor.dtype)));
  }
}

std::vector<float> read_floats(const Tensor& tensor) {
  switch (tensor.dtype) {
    case DType::f32:
      return read_as<float, float>(tensor, [](float value) { return value; });
    case DType::f64:
      return read_as<double, float>(tensor, [](double value) { return static_cast<float>(value); });
    case DType::bf16:
      return read_as<std::uint16_t, float>(tensor, from_bfloat16);
    case DType::f16:
      return read_as<std::uint16_t, float>(tensor, from_float16);
    default:
      throw Error(fmt::format("read_floats: got {}", name(tensor.dtype)));
  }
}

std::vector<std::int64_t> read_offsets(const Tensor& tensor, int rank) {
  std::vector<std::int64_t> offsets;
  const auto axes = static_cast<std::size_t>(rank);
  for_each_offset(tensor.dims().first(axes), {tensor.strides.data(), axes},
                  [&](std::int64_t offset) { offsets.push_back(offset); });
  return offsets;
}

}  // namespace rlk
