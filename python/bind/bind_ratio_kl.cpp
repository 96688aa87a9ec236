// SPDX-License-Identifier: Apache-2.0
// ratio_kl: from Python arguments to a RatioKlCall, and its results back.
#include "python/bind/call_stream.hpp"
#include "python/bind/module.hpp"
#include "templates/ratio_kl/op.hpp"

#include <pybind11/stl.h>

#include <vector>

namespace rlk::bind {
namespace {

// The call with what keeps its tensors alive.
struct Bound {
  RatioKlCall call;
  Framework framework;
  std::vector<TensorArgument> given;

  Bound(py::handle first, std::string_view argument, py::handle stream,
        Tensor RatioKlCall::* into) {
    const ArgumentName name{"ratio_kl", argument};
    given.push_back(bind_first(first, name, stream));
    call.op = &templates::ratio_kl_op;
    call.stream = bind_stream(stream, given[0], name);
    call.*into = given[0].tensor;
    call.device = given[0].tensor.device;
    framework = given[0].framework;
  }
  void bind(py::handle object, std::string_view argument, Tensor RatioKlCall::* into) {
    given.push_back(bind_argument(object, argument, call));
    call.*into = given.back().tensor;
  }
  Output make(const Tensor& like, Tensor RatioKlCall::* into) {
    Output output = make_output(framework, DType::f32, call.device, like.dims(), call.stream);
    call.*into = output.tensor;
    return output;
  }
};

// (ratio, kl, ratio_slope, kl_slope); the last two None unless asked for.
py::tuple forward(py::handle log_prob, py::handle old, py::handle ref, py::handle ids,
                  py::handle mask, std::optional<std::int64_t> ignore_index, long long kl,
                  long long kl_gradient, float log_ratio_low, float log_ratio_high, float kl_clamp,
                  py::handle stream, bool needs_slopes) {
  Bound bound(log_prob, "log_prob", stream, &RatioKlCall::log_prob);
  RatioKlCall& call = bound.call;
  bound.bind(old, "old_logps", &RatioKlCall::old);
  bound.bind(ref, "ref_logps", &RatioKlCall::ref);
  bound.bind(ids, "action_ids", &RatioKlCall::target);
  bound.bind(mask, "attention_mask", &RatioKlCall::mask);
  call.ignore_index = ignore_index;
  call.choices.kl = kl;
  call.choices.kl_gradient = kl_gradient;
  call.values.log_ratio_low = log_ratio_low;
  call.values.log_ratio_high = log_ratio_high;
  call.values.kl_clamp = kl_clamp;
  call.values.kl_output_clamp = __builtin_inff();
  templates::ratio_kl_op.check(call);  // before outputs of a wrong shape are made
  Output outputs[4];
  outputs[0] = bound.make(call.log_prob, &RatioKlCall::ratio);
  outputs[1] = bound.make(call.log_prob, &RatioKlCall::kl);
  if (needs_slopes) {
    outputs[2] = bound.make(call.log_prob, &RatioKlCall::ratio_slope);
    outputs[3] = bound.make(call.log_prob, &RatioKlCall::kl_slope);
  }
  run_call(call, bound.framework, outputs);
  py::tuple results(std::size(outputs));
  for (std::size_t i = 0; i < std::size(outputs); ++i) {
    results[i] = outputs[i].object ? outputs[i].object : py::none();
  }
  return results;
}

// The gradient of log_prob.
py::object backward(py::handle grad_ratio, py::handle grad_kl, py::handle ratio_slope,
                    py::handle kl_slope, py::handle stream) {
  Bound bound(ratio_slope, "ratio_slope", stream, &RatioKlCall::ratio_slope);
  RatioKlCall& call = bound.call;
  call.pass = jit::Pass::bwd;
  bound.bind(kl_slope, "kl_slope", &RatioKlCall::kl_slope);
  bound.bind(grad_ratio, "grad_ratio", &RatioKlCall::grad_ratio);
  bound.bind(grad_kl, "grad_kl", &RatioKlCall::grad_kl);
  templates::ratio_kl_op.check(call);
  const Output grad = bound.make(call.ratio_slope, &RatioKlCall::grad);
  run_call(call, bound.framework, {&grad, 1});
  return grad.object;
}

}  // namespace

void bind_ratio_kl(py::module_& module) {
  module.def("ratio_kl_forward", forward);
  module.def("ratio_kl_backward", backward);
}

}  // namespace rlk::bind
