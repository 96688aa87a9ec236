// SPDX-License-Identifier: Apache-2.0
// Stage 1 of every op: a dictionary of Python's arguments into the fields of a call, by the op's
// table of parameters.
#pragma once

#include "jit/op.hpp"
#include "python/bind/call_stream.hpp"

#include <pybind11/pybind11.h>

#include <span>
#include <vector>

namespace rlk::bind {

// What a bound call needs besides: the framework of its first tensor, and what its tensors point to
// where that is not the caller's own.
struct BoundArguments {
  Framework framework;
  std::vector<py::object> owners;
};

// Binds the parameters of `op`, the first of which tells device and framework, and the argument
// "stream". An argument that the dictionary lacks keeps the field's value. Throws InvalidArgument,
// Unsupported.
BoundArguments bind_call(const jit::Op& op, const py::dict& arguments, jit::OpCall& call);

// The same of these parameters alone, such as those of a backward.
BoundArguments bind_call(const jit::Op& op, std::span<const jit::Parameter> parameters,
                         const py::dict& arguments, jit::OpCall& call);

// Binds more of them; the call has its op, device and stream.
void bind_parameters(std::span<const jit::Parameter> parameters, const py::dict& arguments,
                     jit::OpCall& call, BoundArguments& bound);

// The code of a word; 0 for None. Throws InvalidArgument.
std::int64_t bind_word(py::handle object, std::span<const jit::Word> words,
                       const ArgumentName& name);

// Python's or NumPy's.
bool is_bool(py::handle object);

// Throws InvalidArgument for what is no bool.
bool bind_flag(py::handle object, const ArgumentName& name);

// A flag of the dictionary; false where it is absent.
bool flag_of(const py::dict& arguments, const char* name, const jit::OpCall& call);

}  // namespace rlk::bind
