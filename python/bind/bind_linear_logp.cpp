// SPDX-License-Identifier: Apache-2.0
// linear_logp: from Python arguments to a LinearLogpCall, and its results back.
#include "python/bind/call_stream.hpp"
#include "python/bind/logp_arguments.hpp"
#include "python/bind/module.hpp"
#include "templates/linear_logp/op.hpp"

#include <pybind11/pybind11.h>

#include <span>

namespace rlk::bind {
namespace {

// The arguments that forward and backward share. Holds what the call's tensors point to.
struct Arguments {
  TensorArgument hidden, weight, bias;
  LogpArguments rows;
  LinearLogpCall call;

  // log-prob and the like: float32, one value a row.
  std::span<const std::int64_t> row_dims() const {
    const auto dims = call.hidden.dims();
    return dims.first(dims.size() - 1);
  }
  Output make_per_row() const {
    return make_output(hidden.framework, DType::f32, call.device, row_dims(), call.stream);
  }
  Output make_like(const Tensor& tensor) const {
    return make_output(hidden.framework, tensor.dtype, tensor.device, tensor.dims(), call.stream);
  }
};

Arguments bind_arguments(py::handle hidden, py::handle weight, py::handle target, py::handle bias,
                         py::handle temperature, py::handle softcap, py::handle logit_scale,
                         py::handle mask, py::handle ignore_index, py::handle stream) {
  Arguments bound;
  bound.hidden = bind_first(hidden, "linear_logp: hidden", stream);
  LinearLogpCall& call = bound.call;
  call.op = &templates::linear_logp_op;
  call.stream = bind_stream(stream, bound.hidden, "linear_logp", "hidden");
  bound.weight = bind_argument(weight, "linear_logp: weight", call);
  bound.bias = bind_argument(bias, "linear_logp: bias", call);
  call.hidden = bound.hidden.tensor;
  call.weight = bound.weight.tensor;
  call.bias = bound.bias.tensor;
  call.device = call.hidden.device;
  bound.rows =
      bind_logp_arguments({target, temperature, softcap, logit_scale, mask, ignore_index}, call);
  expect_given(call.hidden, "hidden", call);
  expect_given(call.weight, "weight", call);
  expect_given(call.target, "target", call);
  return bound;
}

// Returns what run_logp_forward() does.
py::object forward(py::handle hidden, py::handle weight, py::handle target, py::handle bias,
                   py::handle temperature, py::handle softcap, py::handle logit_scale,
                   py::handle mask, py::handle ignore_index, py::handle stream,
                   py::handle entropy_flag, py::handle lse_flag, bool save) {
  const bool return_entropy = bind_flag(entropy_flag, "linear_logp: return_entropy");
  const bool return_lse = bind_flag(lse_flag, "linear_logp: return_lse");
  auto bound = bind_arguments(hidden, weight, target, bias, temperature, softcap, logit_scale, mask,
                              ignore_index, stream);
  LinearLogpCall& call = bound.call;
  templates::linear_logp_op.check(call);  // before outputs of a wrong shape are made
  return run_logp_forward(call, bound.hidden.framework, bound.row_dims(),
                          {return_entropy, return_lse, save});
}

py::tuple backward(py::handle grad_output, py::handle grad_entropy, py::handle grad_lse,
                   py::handle hidden, py::handle weight, py::handle target, py::handle bias,
                   py::handle temperature, py::handle softcap, py::handle logit_scale,
                   py::handle mask, py::handle ignore_index, py::handle stream, py::handle row_max,
                   py::handle row_log_sum, py::handle entropy, bool needs_hidden, bool needs_weight,
                   bool needs_bias) {
  auto bound = bind_arguments(hidden, weight, target, bias, temperature, softcap, logit_scale, mask,
                              ignore_index, stream);
  LinearLogpCall& call = bound.call;
  call.pass = jit::Pass::bwd;
  const auto given =
      bind_logp_backward(grad_output, grad_entropy, grad_lse, row_max, row_log_sum, entropy, call);
  const bool runs_forward = !call.row_max.present();
  const Tensor none_yet = dense_tensor(nullptr, DType::f32, {}, {});
  if (runs_forward && call.grad_entropy.present()) call.entropy = none_yet;
  // Checked with the gradients that are asked for, before any is allocated.
  if (needs_bias) call.grad_bias = call.bias.present() ? call.bias : none_yet;
  templates::linear_logp_op.check(call);

  Output log_prob, own_max, own_log_sum, own_entropy;
  if (runs_forward) {
    // Without autograd nothing was saved: the forward runs again for its values a row.
    LinearLogpCall first = call;
    first.pass = jit::Pass::fwd;
    first.log_prob = (log_prob = bound.make_per_row()).tensor;
    call.row_max = first.row_max = (own_max = bound.make_per_row()).tensor;
    call.row_log_sum = first.row_log_sum = (own_log_sum = bound.make_per_row()).tensor;
    if (call.grad_entropy.present()) {
      call.entropy = first.entropy = (own_entropy = bound.make_per_row()).tensor;
    }
    run_call(first, bound.hidden.framework, {});
  }

  Output grads[3];
  py::object results[3] = {py::none(), py::none(), py::none()};
  const auto make = [&](int i, const Tensor& like, Tensor& slot) {
    grads[i] = bound.make_like(like);
    slot = grads[i].tensor;
    results[i] = grads[i].object;
  };
  if (needs_hidden) make(0, call.hidden, call.grad_hidden);
  if (needs_weight) make(1, call.weight, call.grad_weight);
  if (needs_bias) make(2, call.bias, call.grad_bias);
  run_call(call, bound.hidden.framework, grads);
  return py::make_tuple(results[0], results[1], results[2]);
}

// The backward of a call with return_entropy or return_lse is that of all its outputs.
py::tuple explain(py::handle hidden, py::handle weight, py::handle target, py::handle bias,
                  py::handle temperature, py::handle softcap, py::handle logit_scale,
                  py::handle mask, py::handle ignore_index, py::handle stream,
                  py::handle entropy_flag, py::handle lse_flag, py::handle backward_flag) {
  const bool return_entropy = bind_flag(entropy_flag, "linear_logp: return_entropy");
  const bool return_lse = bind_flag(lse_flag, "linear_logp: return_lse");
  const bool backward = bind_flag(backward_flag, "linear_logp: backward");
  auto bound = bind_arguments(hidden, weight, target, bias, temperature, softcap, logit_scale, mask,
                              ignore_index, stream);
  LinearLogpCall& call = bound.call;
  templates::linear_logp_op.check(call);  // hidden has a last axis to leave out
  const auto dims = call.hidden.dims();
  const Tensor per_row =
      dense_tensor(nullptr, DType::f32, call.device, dims.first(dims.size() - 1));
  if (return_entropy) call.entropy = per_row;
  if (return_lse) call.lse = per_row;
  if (backward) {
    call.pass = jit::Pass::bwd;
    call.grad_output = per_row;
    if (return_entropy) call.grad_entropy = per_row;
    if (return_lse) call.grad_lse = per_row;
  }
  return explain_call(call);
}

}  // namespace

void bind_linear_logp(py::module_& module) {
  module.def("linear_logp_forward", forward);
  module.def("linear_logp_backward", backward);
  module.def("linear_logp_explain", explain);
}

}  // namespace rlk::bind
