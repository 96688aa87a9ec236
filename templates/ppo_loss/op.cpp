// SPDX-License-Identifier: Apache-2.0
// ppo_loss for the dispatcher: its constants, entry points and stages.
#include "templates/ppo_loss/op.hpp"

#include "templates/ppo_loss/check.hpp"
#include "templates/ppo_loss/launch.hpp"
#include "templates/registry.hpp"

namespace rlk {
namespace {

// Words of the choices of common/loss/options.h, in the order of their codes.
constexpr std::string_view k_types[] = {"none", "f32", "bf16", "f16"};
constexpr std::string_view k_policies[] = {"ppo", "gspo", "cispo", "sapo", "gpg"};
constexpr std::string_view k_switch[] = {"", "on"};
constexpr std::string_view k_caps[] = {"", "on", "delta"};
constexpr std::string_view k_corrections[] = {"", "truncate", "mask", "band"};
constexpr std::string_view k_levels[] = {"", "sequence", "geometric"};
constexpr std::string_view k_kl[] = {"", "k1", "abs", "k2", "k3"};
constexpr std::string_view k_kl_gradients[] = {"", "unbiased", "unbiased_clamped"};
constexpr std::string_view k_kl_weights[] = {"", "ratio"};

constexpr jit::ConstantDef k_constants[] = {
    {"x", "kX", k_types, /*may_be_run_time=*/false},  // of the gradient: the backward alone
    {"loss", "kPolicy", k_policies},
    {"dual_clip", "kDualClip", k_caps},
    {"tis", "kCorrection", k_corrections},
    {"tis_level", "kLevel", k_levels},
    {"kl", "kKl", k_kl},
    {"kl_gradient", "kKlGradient", k_kl_gradients},
    {"kl_weight", "kKlRatio", k_kl_weights},
    {"entropy", "kEntropy", k_switch},
};

constexpr std::int64_t type_code(DType dtype) {
  return dtype == DType::bf16 ? 2 : dtype == DType::f16 ? 3 : 1;
}

jit::Specialization specialize(const jit::OpCall& base, Target target, const jit::Tuning&) {
  const auto& call = static_cast<const PpoLossCall&>(base);
  // The backward is one multiplication, whatever the loss.
  if (call.pass == jit::Pass::bwd) {
    return jit::Specialization{call.op, call.pass, target, {type_code(call.gradient.dtype)}}
        .generic();
  }
  const LossChoices& c = call.choices;
  return {call.op,
          call.pass,
          target,
          {1, c.policy, c.dual_clip, c.correction, c.level, c.kl, c.kl_gradient, c.kl_ratio,
           c.entropy}};
}

std::vector<jit::Specialization> generic_variants(Target target) {
  using jit::Pass;
  std::vector<jit::Specialization> variants;
  for (const auto& [pass, type] :
       {std::pair{Pass::fwd, 1}, {Pass::bwd, 1}, {Pass::bwd, 2}, {Pass::bwd, 3}}) {
    variants.push_back(
        jit::Specialization{&templates::ppo_loss_op, pass, target, {type}}.generic());
  }
  return variants;
}

int no_shared_bytes(const jit::Specialization&) { return 0; }

}  // namespace

namespace templates {
const jit::Op ppo_loss_op{
    "ppo_loss",      k_constants,      check_ppo_loss,
    specialize,      launch_ppo_loss,  ppo_loss_entries,
    no_shared_bytes, generic_variants, jit::no_model_variants,
    find_source,
};
}  // namespace templates

}  // namespace rlk
