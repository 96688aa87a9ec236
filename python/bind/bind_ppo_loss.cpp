// SPDX-License-Identifier: Apache-2.0
// ppo_loss: from Python arguments to a PpoLossCall, and its results back.
#include "python/bind/module.hpp"
#include "python/bind/ppo_loss_arguments.hpp"
#include "runtime/error.hpp"

#include <pybind11/stl.h>

#include <array>

namespace rlk::bind {
namespace {

constexpr std::size_t k_num_choices = sizeof(LossChoices) / sizeof(long long);
constexpr std::size_t k_num_values = sizeof(LossValues) / sizeof(float);

LossOptions make_options(const std::array<long long, k_num_choices>& choices,
                         const std::array<float, k_num_values>& values, long long reduction,
                         long long kl_reduction, double length, std::int64_t group_size) {
  LossOptions options{{}, {}, reduction, kl_reduction, length, group_size};
  std::memcpy(&options.choices, choices.data(), sizeof choices);
  std::memcpy(&options.values, values.data(), sizeof values);
  return options;
}

// (loss, counts, figures, exact, grad, grad_entropy); the last two None where not asked for.
py::tuple forward(const py::tuple& tensors, const LossOptions& options, py::handle stream,
                  bool needs_grad, bool needs_entropy) {
  PpoLossArguments bound = bind_ppo_loss_arguments(tensors, options, stream);
  PpoLossCall& call = bound.call;
  templates::ppo_loss_op.check(call);  // before outputs of a wrong shape are made
  const std::int64_t counts_shape[] = {kNumCounts}, exact_shape[] = {kNumSums, 2};
  const std::int64_t figures_shape[] = {kNumFigures};
  Output outputs[6];
  const auto make = [&](int i, Tensor& slot, DType dtype, std::span<const std::int64_t> shape) {
    outputs[i] = bound.make(dtype, shape);
    slot = outputs[i].tensor;
  };
  make(0, call.loss, DType::f32, {});
  make(1, call.counts, DType::i64, counts_shape);
  make(2, call.figures, DType::f32, figures_shape);
  make(3, call.exact, DType::i64, exact_shape);
  if (needs_grad) make(4, call.grad, DType::f32, call.log_probs.dims());
  if (needs_entropy) make(5, call.grad_entropy, DType::f32, call.log_probs.dims());
  run_call(call, bound.framework, outputs);
  py::tuple results(std::size(outputs));
  for (std::size_t i = 0; i < std::size(outputs); ++i) {
    results[i] = outputs[i].object ? outputs[i].object : py::none();
  }
  return results;
}

// upstream * saved, in the dtype of `like`.
py::object backward(py::handle upstream, py::handle saved, py::handle like) {
  PpoLossArguments bound;
  PpoLossCall& call = bound.call;
  call.pass = jit::Pass::bwd;
  bound.begin(saved, "saved", py::none(), call.saved);
  bound.bind(upstream, "grad_output", call.upstream);
  Tensor origin;
  if (!like.is(saved)) bound.bind(like, "log_probs", origin);
  call.gradient.dtype = is_storage(origin.dtype) ? origin.dtype : DType::f32;
  templates::ppo_loss_op.check(call);
  const Output gradient = bound.make(call.gradient.dtype, call.saved.dims());
  call.gradient = gradient.tensor;
  run_call(call, bound.framework, {&gradient, 1});
  return gradient.object;
}

py::tuple explain(const py::tuple& tensors, const LossOptions& options) {
  PpoLossArguments bound = bind_ppo_loss_arguments(tensors, options, py::none());
  return explain_call(bound.call);
}

}  // namespace

void bind_ppo_loss(py::module_& module) {
  py::class_<LossOptions>(module, "LossOptions").def(py::init(&make_options));
  module.def("ppo_loss_forward", forward);
  module.def("ppo_loss_backward", backward);
  module.def("ppo_loss_explain", explain);
}

}  // namespace rlk::bind
