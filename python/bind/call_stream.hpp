// SPDX-License-Identifier: Apache-2.0
// What every op's binding does with the stream of its call.
#pragma once

#include "jit/op.hpp"
#include "python/bind/device_array.hpp"
#include "python/bind/tensor_argument.hpp"

#include <span>

namespace rlk::bind {

// The first tensor of a call, `argument` being "op: argument"; `stream` as the caller gave it.
TensorArgument bind_first(py::handle object, const char* argument, py::handle stream);

// The stream of a call on CUDA: the current one of `first`'s framework, else the caller's, else the
// default. `op` and `first_name` are for messages. Throws InvalidArgument, Unsupported.
void* bind_stream(py::handle object, const TensorArgument& first, const char* op,
                  const char* first_name);

// Another tensor of the call.
TensorArgument bind_argument(py::handle object, const char* argument, const jit::OpCall& call);

// Runs the call without the GIL; its results are `outputs`.
void run_call(jit::OpCall& call, const Framework& framework, std::span<const Output> outputs);

// The fields of the call's jit::Explanation, in order.
py::tuple explain_call(const jit::OpCall& call);

}  // namespace rlk::bind
