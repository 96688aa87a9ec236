// SPDX-License-Identifier: Apache-2.0
// group_advantages: from Python arguments to a GroupAdvantagesCall, and its result back.
#include "python/bind/call_stream.hpp"
#include "python/bind/module.hpp"
#include "runtime/error.hpp"
#include "templates/group_advantages/op.hpp"

namespace rlk::bind {
namespace {

py::object forward(py::handle rewards, py::handle boundaries, std::int64_t group_size,
                   std::int64_t normalize, bool eps_is_max, std::int64_t ddof, double eps,
                   py::handle stream) {
  const TensorArgument first = bind_first(rewards, "group_advantages: rewards", stream);
  if (!first.tensor.present()) {
    throw InvalidArgument("group_advantages: rewards: expected a tensor, got None");
  }
  GroupAdvantagesCall call;
  call.op = &templates::group_advantages_op;
  call.stream = bind_stream(stream, first, "group_advantages", "rewards");
  call.rewards = first.tensor;
  call.device = first.tensor.device;
  const TensorArgument starts =
      bind_argument(boundaries, "group_advantages: group_boundaries", call);
  call.group_starts = starts.tensor;
  call.group_size = group_size;
  call.normalize = normalize;
  call.eps_is_max = eps_is_max;
  call.ddof = ddof;
  call.eps = eps;
  templates::group_advantages_op.check(call);
  const Output advantages =
      make_output(first.framework, DType::f32, call.device, call.rewards.dims(), call.stream);
  call.advantages = advantages.tensor;
  run_call(call, first.framework, {&advantages, 1});
  return advantages.object;
}

}  // namespace

void bind_group_advantages(py::module_& module) { module.def("group_advantages", forward); }

}  // namespace rlk::bind
