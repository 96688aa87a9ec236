// SPDX-License-Identifier: Apache-2.0
// logp for the dispatcher: its parameters, constants, entry points and variants.
#include "templates/logp/op.hpp"

#include "templates/registry.hpp"

namespace rlk {
namespace {

constexpr jit::Parameter k_own_parameters[] = {
    {"inplace_backward", jit::Kind::flag, jit::field_of<&LogpCall::in_place>}};
constexpr auto k_parameters =
    jit::joined(k_logits_parameter, k_row_parameters, k_output_parameters, k_own_parameters);
constexpr auto k_constants = logits_constants({{"V", "kV"}, k_segment_constant}, k_parameters);

constexpr const char* k_cpu_fwd[] = {"rlk_logp_fwd_main", "rlk_logp_fwd_merge",
                                     "rlk_logp_fwd_join"};
constexpr const char* k_cpu_bwd[] = {"rlk_logp_bwd_main"};
constexpr const char* k_cuda_fwd[] = {"rlk_logp_fwd_pack", "rlk_logp_fwd_main",
                                      "rlk_logp_fwd_merge", "rlk_logp_fwd_join"};
constexpr const char* k_cuda_bwd[] = {"rlk_logp_bwd_pack", "rlk_logp_bwd_main"};

jit::Specialization specialize(const jit::OpCall& base, Target target, const jit::Tuning&) {
  const auto& call = static_cast<const LogpCall&>(base);
  return logits_specialization(call, target, call.logits.dtype,
                               {call.vocab(), segment_constant(call, call.vocab())});
}

std::vector<jit::Specialization> generic_variants(Target target) {
  return generic_logits_variants(templates::logp_op, target);
}

std::vector<jit::Specialization> model_variants(const jit::ModelShape& shape, DType dtype,
                                                jit::Pass pass, Target target, const jit::Tuning&) {
  return logp_model_variants(templates::logp_op, LogpCall(), shape, dtype, pass, target);
}

std::vector<jit::Specialization> gradients(const jit::OpCall& base, Target target,
                                           const jit::Tuning& tuning) {
  auto call = static_cast<const LogpCall&>(base);
  set_gradients_of(call, true);
  return {specialize(call, target, tuning)};
}

}  // namespace

std::vector<jit::Specialization> logp_model_variants(const jit::Op& op, LogpCall&& call,
                                                     const jit::ModelShape& shape, DType dtype,
                                                     jit::Pass pass, Target target) {
  if (shape.vocab == 0) return {};
  const std::int64_t sizes[] = {shape.vocab};
  call.logits = dense_tensor(nullptr, dtype, {}, sizes);
  call.segment = segment_of_shard(shape);
  std::vector<jit::Specialization> variants;
  for_model_calls(call, op, shape, pass,
                  [&] { variants.push_back(op.specialize(call, target, jit::Tuning())); });
  return variants;
}

std::span<const char* const> logp_entries(jit::Pass pass, Backend backend) {
  if (backend == Backend::cuda) {
    if (pass == jit::Pass::fwd) return k_cuda_fwd;
    return k_cuda_bwd;
  }
  if (pass == jit::Pass::fwd) return k_cpu_fwd;
  return k_cpu_bwd;
}

int logp_shared_bytes(const jit::Specialization& spec) {
  if (backend(spec.target) == Backend::cpu || spec.pass == jit::Pass::bwd) return 0;
  const auto vocab = spec.value_of("V"), entropy = spec.value_of("entropy"),
             stats = spec.value_of("stats");
  const auto given = static_cast<int>(spec.value_of("segment"));
  const int segment = given < 0 ? logp_segment(vocab) : given;
  const auto leaves =
      vocab < 0 ? kLogpMostSharedLeaves : LogpLeaves<kLogpLeaf>{vocab, segment}.count();
  return logp_partial_bytes(leaves, entropy != 0, stats != 0);
}

void launch_logp(const LoadedKernel& kernel, const jit::OpCall& base,
                 const jit::LaunchSettings& settings) {
  const auto& call = static_cast<const LogpCall&>(base);
  backend(kernel.target) == Backend::cuda ? launch_logp_cuda(kernel, call, settings)
                                          : launch_logp_cpu(kernel, call);
}

namespace templates {
const jit::Op logp_op{
    .name = "logp",
    .constants = k_constants.span(),
    .check = check_logp,
    .specialize = specialize,
    .launch = launch_logp,
    .entries = logp_entries,
    .dynamic_shared_bytes = logp_shared_bytes,
    .generic_variants = generic_variants,
    .model_variants = model_variants,
    .find_source = find_source,
    .gradients = gradients,
    .parameters = k_parameters,
};
}  // namespace templates

}  // namespace rlk
