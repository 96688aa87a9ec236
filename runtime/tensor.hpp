// SPDX-License-Identifier: Apache-2.0
// A view of a caller's tensor: pointer, dtype, device, shape, strides. Owns nothing.
#pragma once

#include "runtime/dtype.hpp"

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>

namespace rlk {

struct Device {
  enum class Kind : std::uint8_t { cpu, cuda, other };
  Kind kind = Kind::cpu;
  int index = 0;
  bool operator==(const Device&) const = default;
};

inline constexpr int k_max_rank = 8;

struct Tensor {
  void* data = nullptr;
  DType dtype = DType::f32;
  Device device;
  int rank = -1;  // -1: absent
  std::array<std::int64_t, k_max_rank> shape{};
  std::array<std::int64_t, k_max_rank> strides{};  // in elements; 0 and negative are valid

  bool present() const { return rank >= 0; }
  std::span<const std::int64_t> dims() const { return {shape.data(), static_cast<size_t>(rank)}; }
  std::span<const std::int64_t> steps() const {
    return {strides.data(), static_cast<size_t>(rank)};
  }
  std::int64_t num_elements() const;
};

// The one stride that steps through all these axes in row-major order, if there is one.
std::optional<std::int64_t> flat_stride(std::span<const std::int64_t> shape,
                                        std::span<const std::int64_t> strides);

// A dense row-major tensor over memory of the caller's.
Tensor dense_tensor(void* data, DType dtype, Device device, std::span<const std::int64_t> shape);

// Calls visit(offset) for each element in row-major order, offset in elements.
template <class Visit>
void for_each_offset(std::span<const std::int64_t> shape, std::span<const std::int64_t> strides,
                     Visit&& visit) {
  std::array<std::int64_t, k_max_rank> index{};
  const int rank = static_cast<int>(shape.size());
  for (auto dim : shape) {
    if (dim == 0) return;
  }
  std::int64_t offset = 0;
  while (true) {
    visit(offset);
    int axis = rank - 1;
    for (; axis >= 0; --axis) {
      offset += strides[axis];
      if (++index[axis] < shape[axis]) break;
      offset -= strides[axis] * shape[axis];
      index[axis] = 0;
    }
    if (axis < 0) return;
  }
}

// "[2, 3, 4]", for messages.
std::string text(std::span<const std::int64_t> shape);
std::string text(Device device);

}  // namespace rlk
