// SPDX-License-Identifier: Apache-2.0
// torch's tensors that hold another one: a DTensor, and the result of a collective under way.
#pragma once

#include "python/bind/tensor_argument.hpp"

namespace rlk::bind {

enum class Holder : std::uint8_t {
  none,
  distributed,  // a DTensor holds this rank's part
  collective,   // an AsyncCollectiveTensor holds a tensor that is still to be waited for
};

// Which of them the tensors of a type are. Slow: to be asked once a type.
Holder holder_of(PyTypeObject* type);

// The tensor of a DTensor's rank, where that is all of it; differentiable as DTensor.to_local().
// Throws Unsupported.
py::object local_tensor(py::handle object, const ArgumentName& argument);

// The tensor that a holder holds.
py::object held_tensor(py::handle object, Holder holder, const ArgumentName& argument);

}  // namespace rlk::bind
