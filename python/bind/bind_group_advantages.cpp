// SPDX-License-Identifier: Apache-2.0
// group_advantages: from Python arguments to a GroupAdvantagesCall, and its result back.
#include "python/bind/call_arguments.hpp"
#include "python/bind/module.hpp"
#include "templates/group_advantages/op.hpp"

namespace rlk::bind {
namespace {

py::object group_advantages_forward(const py::dict& arguments) {
  GroupAdvantagesCall call;
  const BoundArguments bound = bind_call(templates::group_advantages_op, arguments, call);
  templates::group_advantages_op.check(call);
  const Output advantages =
      make_output(bound.framework, DType::f32, call.device, call.rewards.dims(), call.stream);
  call.advantages = advantages.tensor;
  run_call(call, bound.framework, {&advantages, 1});
  return advantages.object;
}

py::tuple group_advantages_explain(const py::dict& arguments) {
  GroupAdvantagesCall call;
  const BoundArguments bound = bind_call(templates::group_advantages_op, arguments, call);
  return explain_call(call);
}

}  // namespace

void bind_group_advantages(py::module_& module) {
  module.def("group_advantages", group_advantages_forward);
  module.def("group_advantages_explain", group_advantages_explain);
}

}  // namespace rlk::bind
