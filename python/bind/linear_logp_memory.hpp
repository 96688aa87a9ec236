// SPDX-License-Identifier: Apache-2.0
// Memory of the caller's that a call of linear_logp writes to: gradients, and what chunks share.
#pragma once

#include "python/bind/call_arguments.hpp"
#include "python/bind/tensor_argument.hpp"
#include "templates/linear_logp/op.hpp"

#include <array>
#include <cstdint>

namespace rlk::bind {

// Each has its own layout of what is kept.
Target target_of(const LinearLogpCall& call);

// A tensor that the call writes to.
Tensor bind_writable(py::handle object, const char* argument, const jit::OpCall& call);

// What backwards over chunks of at most `rows` rows share, by name: (shape, dtype). None where the
// call cannot be taken by chunks. The caller makes each once, its contents undefined; weight_sums
// and bias_sums where the gradient is asked for. weight_sums may be the gradient itself where that
// is float32.
py::object chunk_memory(const py::dict& arguments, std::int64_t rows);

// The chunk that a backward's rows are, as `given` has it.
LinearLogpChunk bind_chunk(const py::dict& given, const LinearLogpCall& call);

// The gradients of a call that writes into memory of the caller's.
void set_gradients(LinearLogpCall& call, const std::array<py::object, 3>& into,
                   const std::array<bool, 3>& needs);

// What decides on the device whether gradients are made; absent for None.
TensorArgument bind_factor(py::handle object, const LinearLogpCall& call);

}  // namespace rlk::bind
