// SPDX-License-Identifier: Apache-2.0
// The arguments of a policy loss, from Python.
#pragma once

#include "python/bind/call_stream.hpp"
#include "templates/ppo_loss/op.hpp"

#include <cstdint>
#include <span>
#include <vector>

namespace rlk::bind {

// Options as Python resolved them; made once for equal options.
struct LossOptions {
  LossChoices choices;
  LossValues values;
  long long reduction, kl_reduction;
  double length;
  std::int64_t group_size;
};

// A call with what keeps its tensors alive.
struct PpoLossArguments {
  PpoLossCall call;
  Framework framework;
  std::vector<py::object> owners;

  // Binds the argument by name into its place of the call.
  void bind(py::handle object, std::string_view argument, Tensor& into);

  // The first tensor: it tells device, stream and framework.
  void begin(py::handle first, std::string_view argument, py::handle stream, Tensor& into);

  Output make(DType dtype, std::span<const std::int64_t> shape) const {
    return make_output(framework, dtype, call.device, shape, call.stream);
  }
};

// Tensors in the order of Call in rlk/_ops/ppo_loss.py. Throws InvalidArgument.
PpoLossArguments bind_ppo_loss_arguments(const py::tuple& tensors, const LossOptions& options,
                                         py::handle stream);

}  // namespace rlk::bind
