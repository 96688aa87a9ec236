// SPDX-License-Identifier: Apache-2.0
// What every op's binding does with the stream of its call.
#pragma once

#include "jit/op.hpp"
#include "python/bind/device_array.hpp"
#include "python/bind/tensor_argument.hpp"

#include <span>

namespace rlk::bind {

// The first tensor of a call; `stream` as the caller gave it.
TensorArgument bind_first(py::handle object, const ArgumentName& name, py::handle stream);

// The stream of a call on CUDA: the current one of the framework of `first`, whose name this is,
// else the caller's, else the default. Throws InvalidArgument, Unsupported.
void* bind_stream(py::handle object, const TensorArgument& first, const ArgumentName& name);

// Another tensor of the call.
TensorArgument bind_argument(py::handle object, std::string_view argument, const jit::OpCall& call);

// Runs the call without the GIL; its results are `outputs`.
void run_call(jit::OpCall& call, const Framework& framework, std::span<const Output> outputs);

// The objects of outputs; None for those that were not made.
py::tuple objects_of(std::span<const Output> outputs);

// The fields of the call's jit::Explanation, in order.
py::tuple explain_call(const jit::OpCall& call);

}  // namespace rlk::bind
