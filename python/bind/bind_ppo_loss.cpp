// SPDX-License-Identifier: Apache-2.0
// ppo_loss: from Python arguments to a PpoLossCall, and its results back.
#include "python/bind/call_stream.hpp"
#include "python/bind/module.hpp"
#include "runtime/error.hpp"
#include "templates/ppo_loss/op.hpp"

#include <pybind11/stl.h>

#include <array>

namespace rlk::bind {
namespace {

// Options as Python resolved them; made once for equal options.
struct LossOptions {
  LossChoices choices;
  LossValues values;
  long long reduction, kl_reduction;
  double length;
  std::int64_t group_size;
};

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

// A call with what keeps its tensors alive.
struct Arguments {
  PpoLossCall call;
  Framework framework;
  std::vector<py::object> owners;

  // Binds the argument by name into its place of the call.
  void bind(py::handle object, const char* argument, Tensor& into) {
    if (object.is_none()) return;
    TensorArgument bound = bind_argument(object, argument, call);
    into = bound.tensor;
    if (bound.owner) owners.push_back(std::move(bound.owner));
  }

  void begin(py::handle first, const char* argument, const char* name, py::handle stream,
             Tensor& into) {
    TensorArgument bound = bind_first(first, argument, stream);
    if (!bound.tensor.present()) throw InvalidArgument("{}: expected a tensor, got None", argument);
    call.op = &templates::ppo_loss_op;
    call.stream = bind_stream(stream, bound, "ppo_loss", name);
    call.device = bound.tensor.device;
    framework = bound.framework;
    into = bound.tensor;
    if (bound.owner) owners.push_back(std::move(bound.owner));
  }

  Output make(DType dtype, std::span<const std::int64_t> shape) const {
    return make_output(framework, dtype, call.device, shape, call.stream);
  }
};

void bind_count(Arguments& into, py::handle object, const char* argument, GlobalCount& count) {
  if (object.is_none()) return;
  if (!PyLong_Check(object.ptr())) return into.bind(object, argument, count.tensor);
  count.value = PyLong_AsLongLong(object.ptr());
  if (PyErr_Occurred() != nullptr) PyErr_Clear();
  if (count.value <= 0 || PyBool_Check(object.ptr())) {
    throw InvalidArgument("{}: expected a number above 0 or a tensor, got {}", argument,
                          shown(object));
  }
}

// Tensors in the order of Call in rlk/_ops/ppo_loss.py.
Arguments bind_forward(const py::tuple& tensors, const LossOptions& options, py::handle stream) {
  Py_ssize_t next = 0;
  const auto take = [&] { return py::handle(PyTuple_GetItem(tensors.ptr(), next++)); };
  Arguments bound;
  PpoLossCall& call = bound.call;
  bound.begin(take(), "ppo_loss: log_probs", "log_probs", stream, call.log_probs);
  call.choices = options.choices;
  call.values = options.values;
  call.reduction = options.reduction;
  call.kl_reduction = options.kl_reduction;
  call.length = options.length;
  call.group_size = options.group_size;
  bound.bind(take(), "ppo_loss: old_log_probs", call.old_log_probs);
  bound.bind(take(), "ppo_loss: advantages", call.advantages);
  bound.bind(take(), "ppo_loss: loss_mask", call.mask);
  bound.bind(take(), "ppo_loss: rollout_logprobs", call.rollout_log_probs);
  bound.bind(take(), "ppo_loss: ref_log_probs", call.ref_log_probs);
  bound.bind(take(), "ppo_loss: entropy", call.entropy);
  bound.bind(take(), "ppo_loss: loss_weights", call.weights);
  bound.bind(take(), "ppo_loss: cu_seqlens", call.cu_seqlens);
  bound.bind(take(), "ppo_loss: group_boundaries", call.group_starts);
  bind_count(bound, take(), "ppo_loss: global_tokens", call.global_tokens);
  bind_count(bound, take(), "ppo_loss: global_sequences", call.global_sequences);
  bind_count(bound, take(), "ppo_loss: global_groups", call.global_groups);
  return bound;
}

// (loss, counts, figures, exact, grad, grad_entropy); the last two None where not asked for.
py::tuple forward(const py::tuple& tensors, const LossOptions& options, py::handle stream,
                  bool needs_grad, bool needs_entropy) {
  Arguments bound = bind_forward(tensors, options, stream);
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
  Arguments bound;
  PpoLossCall& call = bound.call;
  call.pass = jit::Pass::bwd;
  bound.begin(saved, "ppo_loss: saved", "saved", py::none(), call.saved);
  bound.bind(upstream, "ppo_loss: grad_output", call.upstream);
  Tensor origin;
  if (!like.is(saved)) bound.bind(like, "ppo_loss: log_probs", origin);
  call.gradient.dtype = is_storage(origin.dtype) ? origin.dtype : DType::f32;
  templates::ppo_loss_op.check(call);
  const Output gradient = bound.make(call.gradient.dtype, call.saved.dims());
  call.gradient = gradient.tensor;
  run_call(call, bound.framework, {&gradient, 1});
  return gradient.object;
}

py::tuple explain(const py::tuple& tensors, const LossOptions& options) {
  Arguments bound = bind_forward(tensors, options, py::none());
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
