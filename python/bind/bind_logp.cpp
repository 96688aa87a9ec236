// SPDX-License-Identifier: Apache-2.0
// logp: from Python arguments to a LogpCall, and its results back.
#include "python/bind/call_stream.hpp"
#include "python/bind/logp_arguments.hpp"
#include "python/bind/module.hpp"
#include "templates/logp/op.hpp"

#include <pybind11/pybind11.h>

#include <span>

namespace rlk::bind {
namespace {

// The arguments that forward and backward share. Holds what the call's tensors point to.
struct Arguments {
  TensorArgument logits;
  LogpArguments rows;
  LogpCall call;

  std::span<const std::int64_t> row_dims() const {
    const auto dims = call.logits.dims();
    return dims.first(dims.size() - 1);
  }
  Output make_per_row() const {
    return make_output(logits.framework, DType::f32, call.device, row_dims(), call.stream);
  }
};

Arguments bind_arguments(py::handle logits, const LogpOptions& options, py::handle stream,
                         bool in_place) {
  Arguments bound;
  bound.logits = bind_first(logits, "logp: logits", stream);
  LogpCall& call = bound.call;
  call.op = &templates::logp_op;
  call.stream = bind_stream(stream, bound.logits, "logp", "logits");
  call.logits = bound.logits.tensor;
  call.device = call.logits.device;
  call.in_place = in_place;
  bound.rows = bind_logp_arguments(options, call);
  expect_given(call.logits, "logits", call);
  expect_given(call.target, "target", call);
  return bound;
}

// Returns what run_logp_forward() does.
py::object forward(py::handle logits, py::handle target, py::handle temperature, py::handle softcap,
                   py::handle logit_scale, py::handle mask, py::handle ignore_index,
                   py::handle stream, py::handle entropy_flag, py::handle lse_flag, bool save,
                   py::handle in_place_flag) {
  const bool return_entropy = bind_flag(entropy_flag, "logp: return_entropy");
  const bool return_lse = bind_flag(lse_flag, "logp: return_lse");
  const bool in_place = bind_flag(in_place_flag, "logp: inplace_backward");
  auto bound = bind_arguments(
      logits, {target, temperature, softcap, logit_scale, mask, ignore_index}, stream, in_place);
  LogpCall& call = bound.call;
  templates::logp_op.check(call);  // before outputs of a wrong shape are made
  return run_logp_forward(call, bound.logits.framework, bound.row_dims(),
                          {return_entropy, return_lse, save});
}

// The gradient of the logits; None where they were written over. Written into `into` where given,
// an earlier call's result, and then only if `unless_one`, one float32, is not 1.
py::object backward(py::handle grad_output, py::handle grad_entropy, py::handle grad_lse,
                    py::handle logits, py::handle target, py::handle temperature,
                    py::handle softcap, py::handle logit_scale, py::handle mask,
                    py::handle ignore_index, py::handle stream, py::handle row_max,
                    py::handle row_log_sum, py::handle entropy, py::handle in_place_flag,
                    py::object into, py::handle unless_one) {
  const bool in_place = bind_flag(in_place_flag, "logp: inplace_backward");
  auto bound = bind_arguments(
      logits, {target, temperature, softcap, logit_scale, mask, ignore_index}, stream, in_place);
  LogpCall& call = bound.call;
  call.pass = jit::Pass::bwd;
  const auto given =
      bind_logp_backward(grad_output, grad_entropy, grad_lse, row_max, row_log_sum, entropy, call);
  const bool runs_forward = !call.row_max.present();
  if (runs_forward && call.grad_entropy.present()) {
    call.entropy = dense_tensor(nullptr, DType::f32, {}, {});
  }
  templates::logp_op.check(call);

  Output log_prob, own_max, own_log_sum, own_entropy;
  if (runs_forward) {
    // Without autograd nothing was saved: the forward runs again for its values a row.
    LogpCall first = call;
    first.pass = jit::Pass::fwd;
    first.log_prob = (log_prob = bound.make_per_row()).tensor;
    call.row_max = first.row_max = (own_max = bound.make_per_row()).tensor;
    call.row_log_sum = first.row_log_sum = (own_log_sum = bound.make_per_row()).tensor;
    if (call.grad_entropy.present()) {
      call.entropy = first.entropy = (own_entropy = bound.make_per_row()).tensor;
    }
    run_call(first, bound.logits.framework, {});
  }
  if (in_place) {
    call.grad_logits = call.logits;
    run_call(call, bound.logits.framework, {});
    return py::none();
  }
  if (!into.is_none()) {
    const TensorArgument grad = bind_argument(into, "logp: into", call);
    const TensorArgument factor = bind_argument(unless_one, "logp: unless_one", call);
    call.grad_logits = grad.tensor;
    call.unless_one = factor.tensor;
    run_call(call, bound.logits.framework, {});
    return into;
  }
  const Output grad = make_output(bound.logits.framework, call.logits.dtype, call.device,
                                  call.logits.dims(), call.stream);
  call.grad_logits = grad.tensor;
  run_call(call, bound.logits.framework, std::span(&grad, 1));
  return grad.object;
}

// The backward of a call with return_entropy or return_lse is that of all its outputs.
py::tuple explain(py::handle logits, py::handle target, py::handle temperature, py::handle softcap,
                  py::handle logit_scale, py::handle mask, py::handle ignore_index,
                  py::handle stream, py::handle entropy_flag, py::handle lse_flag,
                  py::handle backward_flag) {
  const bool return_entropy = bind_flag(entropy_flag, "logp: return_entropy");
  const bool return_lse = bind_flag(lse_flag, "logp: return_lse");
  const bool backward = bind_flag(backward_flag, "logp: backward");
  auto bound = bind_arguments(
      logits, {target, temperature, softcap, logit_scale, mask, ignore_index}, stream, false);
  LogpCall& call = bound.call;
  templates::logp_op.check(call);  // logits have a last axis to leave out
  const Tensor per_row = dense_tensor(nullptr, DType::f32, call.device, bound.row_dims());
  if (return_entropy) call.entropy = per_row;
  if (return_lse) call.lse = per_row;
  if (backward) {
    call.pass = jit::Pass::bwd;
    call.grad_output = per_row;
    if (return_entropy) call.grad_entropy = per_row;
  }
  return explain_call(call);
}

}  // namespace

void bind_logp(py::module_& module) {
  module.def("logp_forward", forward);
  module.def("logp_backward", backward);
  module.def("logp_explain", explain);
}

}  // namespace rlk::bind
