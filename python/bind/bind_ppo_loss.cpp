// SPDX-License-Identifier: Apache-2.0
// ppo_loss: from Python arguments to a PpoLossCall, and its results back.
#include "python/bind/call_arguments.hpp"
#include "python/bind/module.hpp"
#include "templates/ppo_loss/op.hpp"

#include <array>

namespace rlk::bind {
namespace {

// A forward, or a step of one over ranks.
struct Forward {
  PpoLossCall call;
  BoundArguments bound;
  std::array<Output, 6> outputs;

  Forward(const py::dict& arguments, const LossOptions& options)
      : bound(bind_call(templates::ppo_loss_op, arguments, call)) {
    static_cast<LossOptions&>(call) = options;
    templates::ppo_loss_op.check(call);  // before outputs of a wrong shape are made
  }

  void make(std::size_t i, Tensor& slot, DType dtype, std::span<const std::int64_t> shape) {
    outputs[i] = make_output(bound.framework, dtype, call.device, shape, call.stream);
    slot = outputs[i].tensor;
  }

  void make_results() {
    constexpr std::int64_t counts[] = {kNumCounts}, exact[] = {kNumSums, 2};
    constexpr std::int64_t floats[] = {kNumFloatMetrics};
    make(0, call.loss, DType::f32, {});
    make(1, call.counts, DType::i64, counts);
    make(2, call.float_metrics, DType::f32, floats);
    make(3, call.exact, DType::i64, exact);
  }

  void make_gradients(bool needs_grad, bool needs_entropy) {
    if (needs_grad) make(4, call.grad, DType::f32, call.log_probs.dims());
    if (needs_entropy) make(5, call.grad_entropy, DType::f32, call.log_probs.dims());
  }

  py::tuple run() {
    run_call(call, bound.framework, outputs);
    return objects_of(outputs);
  }
};

// (loss, counts, float_metrics, exact, grad, grad_entropy); the last two None where not asked for.
py::tuple ppo_loss_forward(const py::dict& arguments, const LossOptions& options, bool needs_grad,
                           bool needs_entropy) {
  Forward forward(arguments, options);
  forward.make_results();
  forward.make_gradients(needs_grad, needs_entropy);
  return forward.run();
}

// The steps over ranks. Each reads what other ranks' have written, where the arguments have it.
struct Step : Forward {
  Step(const py::dict& arguments, const LossOptions& options) : Forward(arguments, options) {
    bind_parameters(k_ppo_loss_rank_parameters, arguments, call, bound);
  }

  py::object pieces_into(Tensor& slot) {
    const std::int64_t shape[] = {call.num_sequences(), k_piece_words};
    make(0, slot, DType::i64, shape);
    run();
    return outputs[0].object;
  }
};

// (own_pieces, how many groups there are).
py::tuple count(const py::dict& arguments, const LossOptions& options) {
  Step step(arguments, options);
  const py::object pieces = step.pieces_into(step.call.own_pieces);
  return py::make_tuple(pieces, ppo_loss_args(step.call).num_groups);
}

py::object slope(const py::dict& arguments, const LossOptions& options) {
  Step step(arguments, options);
  return step.pieces_into(step.call.own_slopes);
}

// (own_total, None, None, None, grad, grad_entropy).
py::tuple total(const py::dict& arguments, const LossOptions& options, bool needs_grad,
                bool needs_entropy) {
  constexpr std::int64_t shape[] = {k_partial_words};
  Step step(arguments, options);
  step.make(0, step.call.own_total, DType::i64, shape);
  step.make_gradients(needs_grad, needs_entropy);
  return step.run();
}

// As forward, without gradients.
py::tuple ppo_loss_join(const py::dict& arguments, const LossOptions& options) {
  Step step(arguments, options);
  step.make_results();
  return step.run();
}

// upstream * saved, in the dtype of `log_probs` where that is given. Written over `saved` where
// asked for and the dtypes are one.
py::object ppo_loss_backward(const py::dict& arguments, bool in_place) {
  PpoLossCall call;
  call.pass = jit::Pass::bwd;
  const BoundArguments bound =
      bind_call(templates::ppo_loss_op, k_ppo_loss_gradient_parameters, arguments, call);
  const DType dtype = call.log_probs.dtype;
  call.gradient.dtype = call.log_probs.present() && is_storage(dtype) ? dtype : DType::f32;
  templates::ppo_loss_op.check(call);
  if (in_place && call.gradient.dtype == call.saved.dtype && is_dense(call.saved)) {
    call.gradient = call.saved;
    run_call(call, bound.framework, {});
    return arguments["saved"];
  }
  const Output gradient = make_output(bound.framework, call.gradient.dtype, call.device,
                                      call.saved.dims(), call.stream);
  call.gradient = gradient.tensor;
  run_call(call, bound.framework, {&gradient, 1});
  return gradient.object;
}

py::tuple ppo_loss_explain(const py::dict& arguments, const LossOptions& options) {
  PpoLossCall call;
  const BoundArguments bound = bind_call(templates::ppo_loss_op, arguments, call);
  static_cast<LossOptions&>(call) = options;
  return explain_call(call);
}

}  // namespace

void bind_ppo_loss(py::module_& module) {
  module.def("ppo_loss_forward", ppo_loss_forward);
  module.def("ppo_loss_count", count);
  module.def("ppo_loss_slope", slope);
  module.def("ppo_loss_total", total);
  module.def("ppo_loss_join", ppo_loss_join);
  module.def("ppo_loss_backward", ppo_loss_backward, py::arg("arguments"),
             py::arg("in_place") = false);
  module.def("ppo_loss_explain", ppo_loss_explain);
}

}  // namespace rlk::bind
