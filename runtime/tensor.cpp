// SPDX-License-Identifier: Apache-2.0
// Sizes, dense strides and message texts of tensor views.
#include "runtime/tensor.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace rlk {

std::int64_t Tensor::num_elements() const {
  std::int64_t count = 1;
  for (auto dim : dims()) count *= dim;
  return count;
}

std::optional<std::int64_t> flat_stride(std::span<const std::int64_t> shape,
                                        std::span<const std::int64_t> strides) {
  std::optional<std::int64_t> inner;  // stride of the innermost axis longer than 1
  std::int64_t expected = 0;
  for (std::size_t axis = shape.size(); axis-- > 0;) {
    if (shape[axis] == 1) continue;
    if (!inner) {
      inner = strides[axis];
      expected = strides[axis] * shape[axis];
    } else if (strides[axis] == expected) {
      expected *= shape[axis];
    } else {
      return std::nullopt;
    }
  }
  return inner.value_or(0);
}

Tensor dense_tensor(void* data, DType dtype, Device device, std::span<const std::int64_t> shape) {
  Tensor tensor{data, dtype, device, static_cast<int>(shape.size()), {}, {}};
  std::int64_t stride = 1;
  for (int axis = tensor.rank - 1; axis >= 0; --axis) {
    tensor.shape[axis] = shape[axis];
    tensor.strides[axis] = stride;
    stride *= shape[axis];
  }
  return tensor;
}

std::string text(std::span<const std::int64_t> shape) {
  return fmt::format("[{}]", fmt::join(shape, ", "));
}

std::string text(Device device) {
  switch (device.kind) {
    case Device::Kind::cpu:
      return "cpu";
    case Device::Kind::cuda:
      return fmt::format("cuda:{}", device.index);
    default:
      return "a device that is neither cpu nor cuda";
  }
}

}  // namespace rlk
