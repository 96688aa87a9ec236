// SPDX-License-Identifier: Apache-2.0
// Stage 1: Python tensors as Tensor views without a copy, and outputs from the caller's framework.
#pragma once

#include "python/bind/dlpack.hpp"
#include "runtime/tensor.hpp"

#include <pybind11/pybind11.h>

#include <span>

namespace rlk::bind {

namespace py = pybind11;

// Where a tensor came from, and so where results like it are allocated.
struct Framework {
  const dlpack::DLPackExchangeAPI* api = nullptr;  // null: NumPy
};

struct TensorArgument {
  Tensor tensor;
  Framework framework;
  py::object owner;  // keeps what `tensor` points to alive, where that is not the argument itself
};

// Takes torch tensors and others with the DLPack exchange API, NumPy arrays (ml_dtypes' bfloat16
// included) and any producer with __dlpack__. None gives an absent tensor. Throws InvalidArgument
// that begins with `argument`, which reads "op: argument".
TensorArgument bind_tensor(py::handle object, const char* argument);

struct Output {
  py::object object;
  Tensor tensor;
};

// A new dense tensor of the framework, its contents undefined.
Output make_output(const Framework& framework, DType dtype, Device device,
                   std::span<const std::int64_t> shape);

}  // namespace rlk::bind
