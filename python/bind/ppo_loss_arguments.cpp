// SPDX-License-Identifier: Apache-2.0
// Tensors, counts and options of a policy loss into its call.
#include "python/bind/ppo_loss_arguments.hpp"

#include "python/bind/module.hpp"
#include "runtime/error.hpp"

namespace rlk::bind {
namespace {

void bind_count(PpoLossArguments& into, py::handle object, std::string_view argument,
                GlobalCount& count) {
  if (object.is_none()) return;
  if (!PyLong_Check(object.ptr())) return into.bind(object, argument, count.tensor);
  count.value = PyLong_AsLongLong(object.ptr());
  if (PyErr_Occurred() != nullptr) PyErr_Clear();
  if (count.value <= 0 || PyBool_Check(object.ptr())) {
    throw InvalidArgument(
        ArgumentName{"ppo_loss", argument}.fault("a number above 0 or a tensor", shown(object)));
  }
}

}  // namespace

void PpoLossArguments::bind(py::handle object, std::string_view argument, Tensor& into) {
  if (object.is_none()) return;
  TensorArgument bound = bind_argument(object, argument, call);
  into = bound.tensor;
  if (bound.owner) owners.push_back(std::move(bound.owner));
}

void PpoLossArguments::begin(py::handle first, std::string_view argument, py::handle stream,
                             Tensor& into) {
  const ArgumentName name{"ppo_loss", argument};
  TensorArgument bound = bind_first(first, name, stream);
  if (!bound.tensor.present()) throw InvalidArgument(name.fault("a tensor", "None"));
  call.op = &templates::ppo_loss_op;
  call.stream = bind_stream(stream, bound, name);
  call.device = bound.tensor.device;
  framework = bound.framework;
  into = bound.tensor;
  if (bound.owner) owners.push_back(std::move(bound.owner));
}

PpoLossArguments bind_ppo_loss_arguments(const py::tuple& tensors, const LossOptions& options,
                                         py::handle stream) {
  Py_ssize_t next = 0;
  const auto take = [&] { return py::handle(PyTuple_GetItem(tensors.ptr(), next++)); };
  PpoLossArguments bound;
  PpoLossCall& call = bound.call;
  bound.begin(take(), "log_probs", stream, call.log_probs);
  call.choices = options.choices;
  call.values = options.values;
  call.reduction = options.reduction;
  call.kl_reduction = options.kl_reduction;
  call.length = options.length;
  call.group_size = options.group_size;
  bound.bind(take(), "old_log_probs", call.old_log_probs);
  bound.bind(take(), "advantages", call.advantages);
  bound.bind(take(), "loss_mask", call.mask);
  bound.bind(take(), "rollout_logprobs", call.rollout_log_probs);
  bound.bind(take(), "ref_log_probs", call.ref_log_probs);
  bound.bind(take(), "entropy", call.entropy);
  bound.bind(take(), "loss_weights", call.weights);
  bound.bind(take(), "cu_seqlens", call.cu_seqlens);
  bound.bind(take(), "group_boundaries", call.group_starts);
  bind_count(bound, take(), "global_tokens", call.global_tokens);
  bind_count(bound, take(), "global_sequences", call.global_sequences);
  bind_count(bound, take(), "global_groups", call.global_groups);
  return bound;
}

}  // namespace rlk::bind
