// SPDX-License-Identifier: Apache-2.0
// rlk.Array: device memory of rlk's own, for callers whose framework lends no allocator.
#pragma once

#include "runtime/cuda/driver.hpp"
#include "runtime/tensor.hpp"

#include <pybind11/pybind11.h>

#include <memory>

namespace rlk::bind {

namespace py = pybind11;

// Speaks DLPack. Freed when neither Python nor a consumer holds it.
class DeviceArray {
 public:
  // Its contents are undefined. Throws CallError.
  DeviceArray(DType dtype, Device device, std::span<const std::int64_t> shape, void* stream);

  const Tensor& tensor() const { return tensor_; }

  // Along the first axis, in the same memory. Throws py::index_error.
  DeviceArray at(std::int64_t index) const;

  // Consumers wait for what is queued on `stream` up to now.
  void finish(void* stream);

  // Python's protocol; `stream` as in the array API standard for CUDA.
  py::object to_dlpack(const py::object& stream, const py::object& max_version,
                       const py::object& device, const py::object& copy) const;

 private:
  struct Memory;
  std::shared_ptr<Memory> memory_;
  Tensor tensor_;
};

}  // namespace rlk::bind
