// SPDX-License-Identifier: Apache-2.0
// ratio_kl: from Python arguments to a RatioKlCall, and its results back.
#include "python/bind/call_arguments.hpp"
#include "python/bind/module.hpp"
#include "templates/ratio_kl/op.hpp"

#include <array>

namespace rlk::bind {
namespace {

// (ratio, kl, ratio_slope, kl_slope); the last two None unless asked for.
py::tuple ratio_kl_forward(const py::dict& arguments, const LossOptions& estimator,
                           bool needs_slopes) {
  RatioKlCall call;
  const BoundArguments bound = bind_call(templates::ratio_kl_op, arguments, call);
  static_cast<LossOptions&>(call) = estimator;
  templates::ratio_kl_op.check(call);  // before outputs of a wrong shape are made
  std::array<Output, 4> outputs;
  Tensor* const slots[] = {&call.ratio, &call.kl, &call.ratio_slope, &call.kl_slope};
  for (std::size_t i = 0; i < (needs_slopes ? 4 : 2); ++i) {
    outputs[i] =
        make_output(bound.framework, DType::f32, call.device, call.log_prob.dims(), call.stream);
    *slots[i] = outputs[i].tensor;
  }
  run_call(call, bound.framework, outputs);
  return objects_of(outputs);
}

// The gradient of log_prob.
py::object ratio_kl_backward(const py::dict& arguments) {
  RatioKlCall call;
  call.pass = jit::Pass::bwd;
  const BoundArguments bound =
      bind_call(templates::ratio_kl_op, k_ratio_kl_gradient_parameters, arguments, call);
  templates::ratio_kl_op.check(call);
  const Output grad =
      make_output(bound.framework, DType::f32, call.device, call.ratio_slope.dims(), call.stream);
  call.grad = grad.tensor;
  run_call(call, bound.framework, {&grad, 1});
  return grad.object;
}

}  // namespace

void bind_ratio_kl(py::module_& module) {
  module.def("ratio_kl_forward", ratio_kl_forward);
  module.def("ratio_kl_backward", ratio_kl_backward);
}

}  // namespace rlk::bind
