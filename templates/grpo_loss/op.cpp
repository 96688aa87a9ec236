// SPDX-License-Identifier: Apache-2.0
// grpo_loss for the dispatcher: its constants, check, entry points and variants.
#include "templates/grpo_loss/op.hpp"

#include "templates/registry.hpp"

namespace rlk {
namespace {

// No entropy.
constexpr auto k_parameters = jit::joined(k_logits_parameter, k_row_parameters);
constexpr auto k_constants = logits_constants({{"V", "kV"}, k_segment_constant}, k_parameters);

constexpr const char* k_entries[] = {"rlk_grpo_loss_bwd_pack", "rlk_grpo_loss_bwd_main"};

std::span<const char* const> entries(jit::Pass pass, Backend backend) {
  if (pass == jit::Pass::fwd || backend == Backend::cpu) return {};
  return k_entries;
}

jit::Specialization specialize(const jit::OpCall& base, Target target, const jit::Tuning&) {
  const auto& call = static_cast<const GrpoLossCall&>(base);
  return logits_specialization(call, target, call.logits.dtype, {call.vocab(), jit::k_run_time});
}

// The CPU's way is logp and ppo_loss, one after the other.
std::vector<jit::Specialization> generic_variants(Target target) {
  return generic_logits_variants(templates::grpo_loss_op, target);
}

std::vector<jit::Specialization> model_variants(const jit::ModelShape& shape, DType dtype,
                                                jit::Pass pass, Target target, const jit::Tuning&) {
  if (shape.vocab == 0) return {};
  auto variants = logp_model_variants(templates::grpo_loss_op, GrpoLossCall(), shape, dtype, pass,
                                      target);  // throws for a wrong number of any pass
  const bool has_kernel = !entries(pass, backend(target)).empty();
  if (!has_kernel || !grpo_loss_takes(shape.vocab)) return {};
  return variants;
}

// logp's: for an upstream gradient other than 1.
std::vector<jit::Specialization> gradients(const jit::OpCall& base, Target target,
                                           const jit::Tuning& tuning) {
  LogpCall call = static_cast<const GrpoLossCall&>(base);
  call.op = &templates::logp_op;
  return call.op->gradients(call, target, tuning);
}

}  // namespace

namespace templates {
const jit::Op grpo_loss_op{
    .name = "grpo_loss",
    .constants = k_constants.span(),
    .check = check_grpo_loss,
    .specialize = specialize,
    .launch = launch_grpo_loss,
    .entries = entries,
    .dynamic_shared_bytes = grpo_loss_shared_bytes,
    .generic_variants = generic_variants,
    .model_variants = model_variants,
    .find_source = find_source,
    .gradients = gradients,
    .parameters = k_parameters,
};
}  // namespace templates

}  // namespace rlk
