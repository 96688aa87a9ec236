// SPDX-License-Identifier: Apache-2.0
// ppo_loss: from Python arguments to a PpoLossCall, and its results back.
#include "python/bind/call_arguments.hpp"
#include "python/bind/module.hpp"
#include "templates/ppo_loss/op.hpp"

#include <array>

namespace rlk::bind {
namespace {

// (loss, counts, float_metrics, exact, grad, grad_entropy); the last two None where not asked for.
py::tuple forward(const py::dict& arguments, const LossOptions& options, bool needs_grad,
                  bool needs_entropy) {
  PpoLossCall call;
  const BoundArguments bound = bind_call(templates::ppo_loss_op, arguments, call);
  static_cast<LossOptions&>(call) = options;
  templates::ppo_loss_op.check(call);  // before outputs of a wrong shape are made
  constexpr std::int64_t counts_shape[] = {kNumCounts}, exact_shape[] = {kNumSums, 2};
  constexpr std::int64_t floats_shape[] = {kNumFloatMetrics};
  std::array<Output, 6> outputs;
  const auto make = [&](std::size_t i, Tensor& slot, DType dtype,
                        std::span<const std::int64_t> shape) {
    outputs[i] = make_output(bound.framework, dtype, call.device, shape, call.stream);
    slot = outputs[i].tensor;
  };
  make(0, call.loss, DType::f32, {});
  make(1, call.counts, DType::i64, counts_shape);
  make(2, call.float_metrics, DType::f32, floats_shape);
  make(3, call.exact, DType::i64, exact_shape);
  if (needs_grad) make(4, call.grad, DType::f32, call.log_probs.dims());
  if (needs_entropy) make(5, call.grad_entropy, DType::f32, call.log_probs.dims());
  run_call(call, bound.framework, outputs);
  return objects_of(outputs);
}

// upstream * saved, in the dtype of `log_probs` where that is given.
py::object backward(const py::dict& arguments) {
  PpoLossCall call;
  call.pass = jit::Pass::bwd;
  const BoundArguments bound =
      bind_call(templates::ppo_loss_op, k_ppo_loss_gradient_parameters, arguments, call);
  const DType dtype = call.log_probs.dtype;
  call.gradient.dtype = call.log_probs.present() && is_storage(dtype) ? dtype : DType::f32;
  templates::ppo_loss_op.check(call);
  const Output gradient = make_output(bound.framework, call.gradient.dtype, call.device,
                                      call.saved.dims(), call.stream);
  call.gradient = gradient.tensor;
  run_call(call, bound.framework, {&gradient, 1});
  return gradient.object;
}

py::tuple explain(const py::dict& arguments, const LossOptions& options) {
  PpoLossCall call;
  const BoundArguments bound = bind_call(templates::ppo_loss_op, arguments, call);
  static_cast<LossOptions&>(call) = options;
  return explain_call(call);
}

}  // namespace

void bind_ppo_loss(py::module_& module) {
  module.def("ppo_loss_forward", forward);
  module.def("ppo_loss_backward", backward);
  module.def("ppo_loss_explain", explain);
}

}  // namespace rlk::bind
