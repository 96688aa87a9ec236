// SPDX-License-Identifier: Apache-2.0
// Stage 1: Python tensors as Tensor views without a copy, and outputs from the caller's framework.
#pragma once

#include "python/bind/dlpack.hpp"
#include "runtime/error.hpp"
#include "runtime/tensor.hpp"

#include <pybind11/pybind11.h>

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace rlk::bind {

namespace py = pybind11;

class DeviceArray;

// Where a tensor came from, and so where results like it are allocated.
struct Framework {
  const dlpack::DLPackExchangeAPI* api = nullptr;  // null: NumPy, or on CUDA rlk's own
};

// Of what an error tells.
struct ArgumentName {
  std::string_view op, argument;

  Fault fault(std::string expected, std::string got) const {
    return {std::string(op), std::string(argument), std::move(expected), std::move(got)};
  }
};

struct TensorArgument {
  Tensor tensor;
  Framework framework;
  py::object owner;  // keeps what `tensor` points to alive, where that is not the argument itself
  bool is_writable = true;  // false also for a copy, whose changes nobody sees
};

// A CUDA stream as DLPack passes it: the handle; 1 is the legacy default stream.
inline constexpr std::intptr_t k_default_stream = 1;

// Takes torch tensors and others with the DLPack exchange API, NumPy arrays (ml_dtypes' bfloat16
// included) and any producer with __dlpack__. None gives an absent tensor. Throws InvalidArgument.
// A producer with __dlpack__ on CUDA makes its values ready for `stream`.
TensorArgument bind_tensor(py::handle object, const ArgumentName& name,
                           std::intptr_t stream = k_default_stream);

struct Output {
  py::object object;
  Tensor tensor;
  DeviceArray* array = nullptr;  // `object`, where it is an rlk.Array
};

// A new dense tensor of the framework, its contents undefined. For CUDA without a framework an
// rlk.Array, to be written on `stream`.
Output make_output(const Framework& framework, DType dtype, Device device,
                   std::span<const std::int64_t> shape, void* stream);

}  // namespace rlk::bind
