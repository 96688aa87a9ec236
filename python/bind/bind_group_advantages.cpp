// SPDX-License-Identifier: Apache-2.0
// group_advantages: from Python arguments to a GroupAdvantagesCall, and its result back.
#include "python/bind/call_stream.hpp"
#include "python/bind/module.hpp"
#include "runtime/error.hpp"
#include "templates/group_advantages/op.hpp"

namespace rlk::bind {
namespace {

// The call with what keeps its tensors alive.
struct Bound {
  TensorArgument rewards, starts;
  GroupAdvantagesCall call;
};

Bound bind(py::handle rewards, py::handle boundaries, std::int64_t group_size,
           std::int64_t normalize, bool eps_is_max, std::int64_t ddof, double eps,
           std::int64_t group_of_one, py::handle stream) {
  Bound bound;
  const ArgumentName name{"group_advantages", "rewards"};
  bound.rewards = bind_first(rewards, name, stream);
  if (!bound.rewards.tensor.present()) throw InvalidArgument(name.fault("a tensor", "None"));
  GroupAdvantagesCall& call = bound.call;
  call.op = &templates::group_advantages_op;
  call.stream = bind_stream(stream, bound.rewards, name);
  call.rewards = bound.rewards.tensor;
  call.device = call.rewards.device;
  bound.starts = bind_argument(boundaries, "group_boundaries", call);
  call.group_starts = bound.starts.tensor;
  call.group_size = group_size;
  call.normalize = normalize;
  call.eps_is_max = eps_is_max;
  call.ddof = ddof;
  call.eps = eps;
  call.group_of_one = group_of_one;
  return bound;
}

py::object forward(py::handle rewards, py::handle boundaries, std::int64_t group_size,
                   std::int64_t normalize, bool eps_is_max, std::int64_t ddof, double eps,
                   std::int64_t group_of_one, py::handle stream) {
  Bound bound =
      bind(rewards, boundaries, group_size, normalize, eps_is_max, ddof, eps, group_of_one, stream);
  GroupAdvantagesCall& call = bound.call;
  templates::group_advantages_op.check(call);
  const Output advantages = make_output(bound.rewards.framework, DType::f32, call.device,
                                        call.rewards.dims(), call.stream);
  call.advantages = advantages.tensor;
  run_call(call, bound.rewards.framework, {&advantages, 1});
  return advantages.object;
}

py::tuple explain(py::handle rewards, py::handle boundaries, std::int64_t group_size,
                  std::int64_t normalize, bool eps_is_max, std::int64_t ddof, double eps,
                  std::int64_t group_of_one) {
  Bound bound = bind(rewards, boundaries, group_size, normalize, eps_is_max, ddof, eps,
                     group_of_one, py::none());
  return explain_call(bound.call);
}

}  // namespace

void bind_group_advantages(py::module_& module) {
  module.def("group_advantages", forward);
  module.def("group_advantages_explain", explain);
}

}  // namespace rlk::bind
