// SPDX-License-Identifier: Apache-2.0
// grpo_loss on CUDA: from Python arguments to a GrpoLossCall, and its results back.
#include "python/bind/call_arguments.hpp"
#include "python/bind/module.hpp"
#include "runtime/cuda/driver.hpp"
#include "templates/grpo_loss/op.hpp"

#include <array>

namespace rlk::bind {
namespace {

// Whether one look at each row is worth it, where the logits lie.
bool fits(py::handle logits) {
  const TensorArgument bound = bind_first(logits, {"grpo_loss", "policy_logits"}, py::none());
  const Device device = bound.tensor.device;
  if (device.kind != Device::Kind::cuda) return false;
  return grpo_loss_fits(bound.tensor,
                        runtime::cuda::Driver::instance().device(device.index).num_sms);
}

// The call of logp's arguments, with what keeps its tensors alive.
struct BoundLoss {
  GrpoLossCall call;
  BoundArguments arguments;

  explicit BoundLoss(const py::dict& given)
      : arguments(bind_call(templates::grpo_loss_op, given, call)) {
    call.pass = jit::Pass::bwd;
    call.is_differentiated = true;
    templates::grpo_loss_op.check(call);
  }
};

// (log_probs, row_max, row_log_sum, gradient of the logits). The tensors of ppo_loss are dense, as
// GrpoLossCall has them; of log_probs the shape alone is read.
py::tuple grpo_loss_forward(const py::dict& arguments, const py::dict& loss_arguments,
                            const LossOptions& options) {
  BoundLoss bound(arguments);
  GrpoLossCall& call = bound.call;
  PpoLossCall& loss = call.loss;
  BoundArguments of_loss = bind_call(templates::ppo_loss_op, loss_arguments, loss);
  bind_parameters(k_ppo_loss_rank_parameters, loss_arguments, loss, of_loss);
  static_cast<LossOptions&>(loss) = options;
  templates::ppo_loss_op.check(loss);
  const std::int64_t sequences[] = {loss.num_sequences()};
  Output shared[3];
  Tensor* const slots[] = {&loss.sequence_weight, &loss.sequence_kl_weight,
                           &loss.sequence_statistic};
  for (std::size_t i = 0; i < std::size(shared); ++i) {
    shared[i] = make_output(of_loss.framework, DType::f32, loss.device, sequences, loss.stream);
    *slots[i] = shared[i].tensor;
  }
  run_call(loss, of_loss.framework, shared);

  const auto make = [&](DType dtype, const Tensor& like) {
    return make_output(bound.arguments.framework, dtype, call.device, like.dims(), call.stream);
  };
  const std::array outputs{make(DType::f32, call.target), make(DType::f32, call.target),
                           make(DType::f32, call.target), make(call.logits.dtype, call.logits)};
  call.log_prob = outputs[0].tensor;
  call.row_max = outputs[1].tensor;
  call.row_log_sum = outputs[2].tensor;
  call.grad_logits = outputs[3].tensor;
  run_call(call, bound.arguments.framework, outputs);
  return py::make_tuple(outputs[0].object, outputs[1].object, outputs[2].object, outputs[3].object);
}

py::tuple grpo_loss_explain(const py::dict& arguments) {
  return explain_call(BoundLoss(arguments).call);
}

}  // namespace

void bind_grpo_loss(py::module_& module) {
  module.def("grpo_loss_fits", fits);
  module.def("grpo_loss_forward", grpo_loss_forward);
  module.def("grpo_loss_explain", grpo_loss_explain);
}

}  // namespace rlk::bind
