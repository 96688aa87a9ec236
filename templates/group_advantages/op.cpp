// SPDX-License-Identifier: Apache-2.0
// group_advantages for the dispatcher: its constants, check, entry points and launches.
#include "templates/group_advantages/op.hpp"

#include "runtime/cuda/cuda_loader.hpp"
#include "runtime/cuda/launch.hpp"
#include "runtime/error.hpp"
#include "runtime/read_values.hpp"
#include "runtime/thread_pool.hpp"
#include "templates/common/boundaries.hpp"
#include "templates/common/cpu_steps.hpp"
#include "templates/common/cuda_memory.hpp"
#include "templates/common/dense.hpp"
#include "templates/common/device_errors.hpp"
#include "templates/common/host_copy.hpp"
#include "templates/registry.hpp"

#include <algorithm>

namespace rlk {
namespace {

constexpr std::string_view k_types[] = {"none", "f32"};
constexpr std::string_view k_normalize[] = {"std", "center", "rloo", "loo_std"};
constexpr std::string_view k_eps_modes[] = {"", "max"};

constexpr jit::ConstantDef k_constants[] = {
    {"x", "kX", k_types, /*may_be_run_time=*/false},  // of the result
    {"normalize", "kNormalize", k_normalize},
    {"eps_mode", "kEpsIsMax", k_eps_modes},
};

constexpr const char* k_entries[] = {"rlk_group_advantages_fwd_main"};

long long least_group(const GroupAdvantagesCall& call) {
  return call.group_of_one == kRefused ? 2 : 1;
}

void check(const jit::OpCall& base) {
  const auto& call = static_cast<const GroupAdvantagesCall&>(base);
  if (!is_floating(call.rewards.dtype)) {
    throw InvalidArgument("group_advantages: rewards: expected a floating dtype, got {}",
                          name(call.rewards.dtype));
  }
  const std::int64_t count = call.rewards.num_elements();
  const Tensor& starts = call.group_starts;
  if (!starts.present()) {
    if (call.group_size < least_group(call)) {
      throw InvalidArgument(
          "group_advantages: samples_per_prompt: expected at least 2 with group_of_one='error', "
          "got {}",
          call.group_size);
    }
    if (count % call.group_size == 0) return;
    throw InvalidArgument(
        "group_advantages: samples_per_prompt: expected a divisor of the {} rewards, got {}", count,
        call.group_size);
  }
  if (starts.device != call.device) {
    throw InvalidArgument(
        "group_advantages: group_boundaries: expected device {} (that of rewards), got {}",
        text(call.device), text(starts.device));
  }
  if (!is_integer(starts.dtype) || starts.rank != 1 || starts.shape[0] < 1) {
    throw InvalidArgument(
        "group_advantages: group_boundaries: expected integers of shape [P + 1], got {} of shape "
        "{}",
        name(starts.dtype), text(starts.dims()));
  }
}

GroupAdvantagesArgs args_of(const GroupAdvantagesCall& call) {
  GroupAdvantagesArgs args{};
  args.num_rewards = call.rewards.num_elements();
  args.num_groups = call.group_starts.present() ? call.group_starts.shape[0] - 1
                                                : args.num_rewards / call.group_size;
  args.group_size = call.group_size;
  args.normalize = call.normalize;
  args.eps_is_max = call.eps_is_max;
  args.ddof = call.ddof;
  args.eps = call.eps;
  args.group_of_one = call.group_of_one;
  args.advantages = static_cast<float*>(call.advantages.data);
  return args;
}

void expect_groups(const templates::Dense<long long>& starts, const GroupAdvantagesCall& call) {
  templates::expect_boundaries(starts, "group_advantages: group_boundaries",
                               call.rewards.num_elements(), least_group(call));
}

void launch_cpu(const LoadedKernel& kernel, const GroupAdvantagesCall& call) {
  GroupAdvantagesArgs args = args_of(call);
  const auto rewards = templates::dense_doubles(call.rewards);
  const auto starts = templates::dense_integers(call.group_starts);
  expect_groups(starts, call);
  args.rewards = rewards.data;
  args.starts = starts.data;
  const auto step = reinterpret_cast<GroupAdvantagesCpuStep>(kernel.entries[0]);
  const templates::DefaultFloatMode mode;
  step(&args, 0, args.num_groups);
}

// RLK_VALIDATE=sync: what the CPU looks at, before the launch.
void validate(runtime::cuda::Driver& driver, const GroupAdvantagesCall& call) {
  templates::wait_for_values(driver, call);
  const runtime::cuda::DeviceGuard guard(driver, call.device.index);
  Tensor starts = call.group_starts;
  const templates::HostCopy copy(driver, starts);
  expect_groups(templates::dense_integers(starts), call);
}

// As one stride of elements, or made so by the driver's copy is not worth it: rewards are few.
void launch_cuda(const LoadedKernel& kernel, const GroupAdvantagesCall& call, bool validate_sync) {
  using namespace runtime::cuda;
  Driver& driver = entry(kernel, 0).driver();
  DeviceError& error = templates::device_error(driver, call.device.index);
  templates::raise_device_error(error);
  if (validate_sync) validate(driver, call);
  GroupAdvantagesArgs args = args_of(call);
  args.error = &error;
  args.op = "group_advantages";
  const auto stride = flat_stride(call.rewards.dims(), call.rewards.steps());
  if (!stride && args.num_rewards > 1) {
    throw InvalidArgument(
        "group_advantages: rewards: expected one stride on CUDA, got a tensor to be made "
        "contiguous");
  }
  if (call.group_starts.present()) {
    if (call.group_starts.dtype != DType::i64 ||
        (call.group_starts.strides[0] != 1 && call.group_starts.shape[0] > 1)) {
      throw InvalidArgument(
          "group_advantages: group_boundaries: expected contiguous int64 on CUDA, got {}",
          name(call.group_starts.dtype));
    }
    args.starts = static_cast<const long long*>(call.group_starts.data);
  }
  args.rewards = call.rewards.data;
  args.stride = stride.value_or(1);
  args.type = type_code(call.rewards.dtype);
  if (args.num_groups == 0) return;
  void* arguments[] = {&args};
  const auto blocks = static_cast<unsigned>(std::min<Int64>(ceil_div(args.num_groups, 8), 4096));
  entry(kernel, 0).launch(call.device.index, static_cast<Stream>(call.stream), {{blocks}, {256}, 0},
                          arguments);
}

void launch(const LoadedKernel& kernel, const jit::OpCall& base,
            const jit::LaunchSettings& settings) {
  const auto& call = static_cast<const GroupAdvantagesCall&>(base);
  backend(kernel.target) == Backend::cuda ? launch_cuda(kernel, call, settings.validate_sync)
                                          : launch_cpu(kernel, call);
}

std::span<const char* const> entries(jit::Pass pass, Backend) {
  if (pass == jit::Pass::fwd) return k_entries;
  return {};
}

jit::Specialization specialize(const jit::OpCall& base, Target target, const jit::Tuning&) {
  const auto& call = static_cast<const GroupAdvantagesCall&>(base);
  return {call.op, call.pass, target, {1, call.normalize, call.eps_is_max}};
}

int no_shared_bytes(const jit::Specialization&) { return 0; }

std::vector<jit::Specialization> generic_variants(Target target) {
  return {
      jit::Specialization{&templates::group_advantages_op, jit::Pass::fwd, target, {1}}.generic()};
}

}  // namespace

namespace templates {
const jit::Op group_advantages_op{
    "group_advantages", k_constants,      check,
    specialize,         launch,           entries,
    no_shared_bytes,    generic_variants, jit::no_model_variants,
    find_source,
};
}  // namespace templates

}  // namespace rlk
