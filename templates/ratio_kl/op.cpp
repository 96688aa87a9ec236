// SPDX-License-Identifier: Apache-2.0
// ratio_kl for the dispatcher: its constants, check, entry points and launches.
#include "templates/ratio_kl/op.hpp"

#include "runtime/cuda/cuda_loader.hpp"
#include "runtime/read_values.hpp"
#include "templates/common/cpu_steps.hpp"
#include "templates/common/cuda_memory.hpp"
#include "templates/common/dense.hpp"
#include "templates/common/device_errors.hpp"
#include "templates/registry.hpp"

#include <algorithm>

namespace rlk {
namespace {

constexpr jit::Parameter k_parameters[] = {
    {"log_prob", jit::Kind::tensor, jit::field_of<&RatioKlCall::log_prob>},
    {"old_logps", jit::Kind::tensor, jit::field_of<&RatioKlCall::old>},
    {"ref_logps", jit::Kind::tensor, jit::field_of<&RatioKlCall::ref>},
    {"action_ids", jit::Kind::tensor, jit::field_of<&RatioKlCall::target>},
    {"attention_mask", jit::Kind::tensor, jit::field_of<&RatioKlCall::mask>},
    {"ignore_index", jit::Kind::optional_index, jit::field_of<&RatioKlCall::ignore_index>, -100},
};

constexpr LossChoice k_choices[] = {loss_choice("kl_estimator"), loss_choice("kl_gradient")};
constexpr auto k_constants = loss_constants(k_choices);

constexpr const char* k_fwd[] = {"rlk_ratio_kl_fwd_main"};
constexpr const char* k_bwd[] = {"rlk_ratio_kl_bwd_main"};

constexpr Int64 k_token_cost = 40;  // operations
constexpr Int64 k_most_blocks = 4096;

// Ids and mask are logp's to check.
void check(const jit::OpCall& base) {
  const auto& call = static_cast<const RatioKlCall&>(base);
  const bool forward = call.pass == jit::Pass::fwd;
  const Tensor& like = forward ? call.log_prob : call.ratio_slope;
  const auto expect = [&](const Tensor& tensor, const char* argument) {
    const Given given{call, tensor, argument};
    expect_present(given);
    expect_device(given, "policy_logits");
    expect_floating(given);
    expect_shape(given, like.dims(), "action_ids");
  };
  if (forward) {
    expect(call.old, "old_logps");
    expect(call.ref, "ref_logps");
    return;
  }
  if (call.grad_kl.present()) expect(call.grad_kl, "grad_kl");
  if (call.grad_ratio.present() || !call.grad_kl.present()) {
    expect(call.grad_ratio, "grad_ratio");
  }
}

float* floats(const Tensor& tensor) {
  return tensor.present() ? static_cast<float*>(tensor.data) : nullptr;
}

RatioKlArgs forward_args(const RatioKlCall& call) {
  RatioKlArgs args{};
  args.num_tokens = call.log_prob.num_elements();
  args.log_prob = floats(call.log_prob);
  args.choices = call.choices;
  args.values = call.values;
  args.ratio = floats(call.ratio);
  args.kl = floats(call.kl);
  args.ratio_slope = floats(call.ratio_slope);
  args.kl_slope = floats(call.kl_slope);
  return args;
}

RatioKlBackwardArgs backward_args(const RatioKlCall& call) {
  RatioKlBackwardArgs args{};
  args.num_tokens = call.grad.num_elements();
  args.ratio_slope = floats(call.ratio_slope);
  args.kl_slope = floats(call.kl_slope);
  args.grad = floats(call.grad);
  return args;
}

void run(const LoadedKernel& kernel, const void* args, Int64 num_tokens) {
  const auto step = reinterpret_cast<RatioKlCpuStep>(kernel.entries[0]);
  templates::run_items(num_tokens, k_token_cost,
                       [&](std::int64_t begin, std::int64_t end) { step(args, begin, end); });
}

void launch_cpu(const LoadedKernel& kernel, const RatioKlCall& call) {
  if (call.pass == jit::Pass::bwd) {
    RatioKlBackwardArgs args = backward_args(call);
    const auto grad_ratio = templates::dense_floats(call.grad_ratio);
    const auto grad_kl = templates::dense_floats(call.grad_kl);
    args.grad_ratio.data = grad_ratio.data;
    args.grad_kl.data = grad_kl.data;
    return run(kernel, &args, args.num_tokens);
  }
  RatioKlArgs args = forward_args(call);
  const auto old = templates::dense_floats(call.old), ref = templates::dense_floats(call.ref);
  auto mask = templates::dense_mask({call, call.mask, "attention_mask"});
  if (call.ignore_index) {
    const auto ids = templates::dense_integers(call.target);
    if (mask.copy.empty()) {
      const auto count = static_cast<std::size_t>(args.num_tokens);
      mask.copy = mask.data ? std::vector(mask.data, mask.data + count)
                            : std::vector<unsigned char>(count, 1);
      mask.data = mask.copy.data();
    }
    for (std::size_t i = 0; i < mask.copy.size(); ++i) {
      if (ids.data[i] == *call.ignore_index) mask.copy[i] = 0;
    }
  }
  args.old.data = old.data;
  args.ref.data = ref.data;
  args.mask.data = mask.data;
  run(kernel, &args, args.num_tokens);
}

RatioKlArray array(const Tensor& tensor) {
  if (!tensor.present()) return {};
  RatioKlArray a{tensor.data, type_code(tensor.dtype), 1, {tensor.num_elements()}, {}};
  if (const auto stride = flat_stride(tensor.dims(), tensor.steps())) {
    a.strides[0] = *stride;
    return a;
  }
  a.num_axes = tensor.rank;
  std::ranges::copy(tensor.dims(), a.sizes);
  std::ranges::copy(tensor.steps(), a.strides);
  return a;
}

template <class Args>
void launch_steps(const LoadedKernel& kernel, const RatioKlCall& call, Args& args) {
  using namespace runtime::cuda;
  const Int64 blocks = std::min(ceil_div(args.num_tokens, 256), k_most_blocks);
  if (blocks == 0) return;
  void* arguments[] = {&args};
  entry(kernel, 0).launch(call.device.index, static_cast<Stream>(call.stream),
                          {{static_cast<unsigned>(blocks)}, {256}, 0}, arguments);
}

void launch_cuda(const LoadedKernel& kernel, const RatioKlCall& call) {
  templates::raise_device_error(
      templates::device_error(runtime::cuda::entry(kernel, 0).driver(), call.device.index));
  if (call.pass == jit::Pass::bwd) {
    RatioKlBackwardArgs args = backward_args(call);
    args.grad_ratio = array(call.grad_ratio);
    args.grad_kl = array(call.grad_kl);
    return launch_steps(kernel, call, args);
  }
  RatioKlArgs args = forward_args(call);
  args.old = array(call.old);
  args.ref = array(call.ref);
  args.mask = array(call.mask);
  args.target = array(call.target);
  args.has_ignore_index = call.ignore_index.has_value();
  args.ignore_index = call.ignore_index.value_or(0);
  launch_steps(kernel, call, args);
}

void launch(const LoadedKernel& kernel, const jit::OpCall& base, const jit::LaunchSettings&) {
  const auto& call = static_cast<const RatioKlCall&>(base);
  backend(kernel.target) == Backend::cuda ? launch_cuda(kernel, call) : launch_cpu(kernel, call);
}

std::span<const char* const> entries(jit::Pass pass, Backend) {
  if (pass == jit::Pass::fwd) return k_fwd;
  return k_bwd;
}

jit::Specialization specialize(const jit::OpCall& base, Target target, const jit::Tuning&) {
  const auto& call = static_cast<const RatioKlCall&>(base);
  const auto spec = loss_specialization(call, target, k_choices, call.choices);
  // The backward is two multiplications, whatever the estimator.
  return call.pass == jit::Pass::fwd ? spec : spec.generic();
}

std::vector<jit::Specialization> generic_variants(Target target) {
  std::vector<jit::Specialization> variants;
  for (auto pass : {jit::Pass::fwd, jit::Pass::bwd}) {
    variants.push_back(
        jit::Specialization{&templates::ratio_kl_op, pass, target, {kFloat32}}.generic());
  }
  return variants;
}

}  // namespace

namespace templates {
const jit::Op ratio_kl_op{
    .name = "ratio_kl",
    .constants = k_constants,
    .check = check,
    .specialize = specialize,
    .launch = launch,
    .entries = entries,
    .generic_variants = generic_variants,
    .find_source = find_source,
    .parameters = k_parameters,
};
}  // namespace templates

}  // namespace rlk
