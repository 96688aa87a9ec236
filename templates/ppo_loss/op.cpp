// SPDX-License-Identifier: Apache-2.0
// ppo_loss for the dispatcher: its parameters, constants and variants.
#include "templates/ppo_loss/op.hpp"

#include "templates/registry.hpp"

namespace rlk {
namespace {

constexpr jit::Parameter k_parameters[] = {
    {"log_probs", jit::Kind::tensor, jit::field_of<&PpoLossCall::log_probs>},
    {"old_log_probs", jit::Kind::tensor, jit::field_of<&PpoLossCall::old_log_probs>},
    {"advantages", jit::Kind::tensor, jit::field_of<&PpoLossCall::advantages>},
    {"loss_mask", jit::Kind::tensor, jit::field_of<&PpoLossCall::mask>},
    {"rollout_logprobs", jit::Kind::tensor, jit::field_of<&PpoLossCall::rollout_log_probs>},
    {"ref_log_probs", jit::Kind::tensor, jit::field_of<&PpoLossCall::ref_log_probs>},
    {"entropy", jit::Kind::tensor, jit::field_of<&PpoLossCall::entropy>},
    {"importance_weights", jit::Kind::tensor, jit::field_of<&PpoLossCall::importance_weights>},
    {"loss_weights", jit::Kind::tensor, jit::field_of<&PpoLossCall::weights>},
    {"cu_seqlens", jit::Kind::tensor, jit::field_of<&PpoLossCall::cu_seqlens>},
    {"group_boundaries", jit::Kind::tensor, jit::field_of<&PpoLossCall::group_starts>},
    {"global_tokens", jit::Kind::count, jit::field_of<&PpoLossCall::global_tokens>},
    {"global_sequences", jit::Kind::count, jit::field_of<&PpoLossCall::global_sequences>},
    {"global_groups", jit::Kind::count, jit::field_of<&PpoLossCall::global_groups>},
};

// x is the type of the gradient: the backward alone.
constexpr auto k_constants = loss_constants(k_loss_choices);

jit::Specialization specialize(const jit::OpCall& base, Target target, const jit::Tuning&) {
  const auto& call = static_cast<const PpoLossCall&>(base);
  if (call.pass == jit::Pass::fwd) {
    return loss_specialization(call, target, k_loss_choices, call.choices);
  }
  // The backward is one multiplication, whatever the loss.
  const std::int64_t type = type_code(call.gradient.dtype);
  return jit::Specialization{call.op, call.pass, target, {type}}.generic();
}

std::vector<jit::Specialization> generic_variants(Target target) {
  using jit::Pass;
  const jit::Op* const op = &templates::ppo_loss_op;
  std::vector variants{jit::Specialization{op, Pass::fwd, target, {kFloat32}}.generic()};
  for (const std::int64_t type : k_storage_codes) {
    variants.push_back(jit::Specialization{op, Pass::bwd, target, {type}}.generic());
  }
  return variants;
}

}  // namespace

namespace templates {
const jit::Op ppo_loss_op{
    .name = "ppo_loss",
    .constants = k_constants,
    .check = check_ppo_loss,
    .specialize = specialize,
    .launch = launch_ppo_loss,
    .entries = ppo_loss_entries,
    .generic_variants = generic_variants,
    .find_source = find_source,
    .parameters = k_parameters,
};
}  // namespace templates

}  // namespace rlk
