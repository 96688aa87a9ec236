// SPDX-License-Identifier: Apache-2.0
// group_advantages for the dispatcher: its constants, check, entry points and launches.
#include "templates/group_advantages/op.hpp"

#include "runtime/cuda/cuda_loader.hpp"
#include "runtime/cuda/launch.hpp"
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

constexpr jit::Parameter k_normalize{
    .name = "normalize",
    .kind = jit::Kind::word,
    .field = jit::field_of<&GroupAdvantagesCall::normalize>,
    .constant = {"normalize", "kNormalize", jit::constant_words<k_normalizations, false>},
    .words = k_normalizations};
constexpr jit::Parameter k_eps_mode{
    .name = "eps_mode",
    .kind = jit::Kind::word,
    .field = jit::field_of<&GroupAdvantagesCall::eps_mode>,
    .constant = {"eps_mode", "kEpsIsMax", jit::constant_words<k_eps_modes>},
    .words = k_eps_modes};
constexpr jit::Parameter k_group_of_one{.name = "group_of_one",
                                        .kind = jit::Kind::word,
                                        .field = jit::field_of<&GroupAdvantagesCall::group_of_one>,
                                        .words = k_groups_of_one};
constexpr jit::Parameter k_parameters[] = {
    {"rewards", jit::Kind::tensor, jit::field_of<&GroupAdvantagesCall::rewards>},
    {"samples_per_prompt", jit::Kind::optional_index,
     jit::field_of<&GroupAdvantagesCall::group_size>},
    {"group_boundaries", jit::Kind::tensor, jit::field_of<&GroupAdvantagesCall::group_starts>},
    k_normalize,
    {"ddof", jit::Kind::optional_index, jit::field_of<&GroupAdvantagesCall::ddof>, 1},
    {"eps", jit::Kind::number, jit::field_of<&GroupAdvantagesCall::eps>, 1e-6},
    k_eps_mode,
    k_group_of_one,
};
constexpr jit::ConstantDef k_constants[] = {k_type_constant, k_normalize.constant,
                                            k_eps_mode.constant};

constexpr const char* k_entries[] = {"rlk_group_advantages_fwd_main"};

long long least_group(const GroupAdvantagesCall& call) {
  return call.group_of_one == kRefused ? 2 : 1;
}

Given boundaries(const GroupAdvantagesCall& call) {
  return {call, call.group_starts, "group_boundaries"};
}

void check(const jit::OpCall& base) {
  const auto& call = static_cast<const GroupAdvantagesCall&>(base);
  expect_floating({call, call.rewards, "rewards"});
  const Tensor& starts = call.group_starts;
  if (!starts.present()) {
    const std::int64_t count = call.rewards.num_elements(), size = call.group_size.value_or(0);
    const Given given{call, starts, "samples_per_prompt"};
    if (size < least_group(call)) {
      given.fail("at least 2 with group_of_one='error'", std::to_string(size));
    }
    if (count % size == 0) return;
    given.fail(fmt::format("a divisor of the {} rewards", count), std::to_string(size));
  }
  const Given given = boundaries(call);
  expect_device(given, "rewards");
  if (!is_integer(starts.dtype) || starts.rank != 1 || starts.shape[0] < 1) {
    given.fail("integers of shape [P + 1]",
               fmt::format("{} of shape {}", name(starts.dtype), text(starts.dims())));
  }
}

GroupAdvantagesArgs args_of(const GroupAdvantagesCall& call) {
  GroupAdvantagesArgs args{};
  args.num_rewards = call.rewards.num_elements();
  args.num_groups = call.group_starts.present() ? call.group_starts.shape[0] - 1
                                                : args.num_rewards / *call.group_size;
  args.group_size = call.group_size.value_or(0);
  args.normalize = call.normalize;
  args.eps_is_max = call.eps_mode;
  args.ddof = *call.ddof;
  args.eps = call.eps;
  args.group_of_one = call.group_of_one;
  args.advantages = static_cast<float*>(call.advantages.data);
  return args;
}

void expect_groups(const GroupAdvantagesCall& call) {
  templates::expect_boundaries(boundaries(call), call.rewards.num_elements(), least_group(call));
}

void launch_cpu(const LoadedKernel& kernel, const GroupAdvantagesCall& call) {
  GroupAdvantagesArgs args = args_of(call);
  const auto rewards = templates::dense_doubles(call.rewards);
  const auto starts = templates::dense_integers(call.group_starts);
  expect_groups(call);
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
  GroupAdvantagesCall host = call;
  const templates::HostCopy copy(driver, host.group_starts);
  expect_groups(host);
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
    Given{call, call.rewards, "rewards"}.fail("one stride on CUDA",
                                              "a tensor to be made contiguous");
  }
  if (call.group_starts.present()) {
    if (call.group_starts.dtype != DType::i64 ||
        (call.group_starts.strides[0] != 1 && call.group_starts.shape[0] > 1)) {
      boundaries(call).fail("contiguous int64 on CUDA", std::string(name(call.group_starts.dtype)));
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
  return {call.op, call.pass, target, {kFloat32, call.normalize, call.eps_mode}};
}

std::vector<jit::Specialization> generic_variants(Target target) {
  return {jit::Specialization{&templates::group_advantages_op, jit::Pass::fwd, target, {kFloat32}}
              .generic()};
}

}  // namespace

namespace templates {
const jit::Op group_advantages_op{
    .name = "group_advantages",
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
