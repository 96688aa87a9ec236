// SPDX-License-Identifier: Apache-2.0
// grpo_loss for the dispatcher: its constants, check, entry points and variants.
#include "templates/grpo_loss/op.hpp"

#include "templates/common/logp/check.hpp"
#include "templates/common/logp/variants.hpp"
#include "templates/grpo_loss/launch.hpp"

namespace rlk {
namespace {

// Without entropy.
constexpr auto k_constants = std::span(k_logits_constants).first<4>();

constexpr const char* k_entries[] = {"rlk_grpo_loss_bwd_pack", "rlk_grpo_loss_bwd_main"};

std::span<const char* const> entries(jit::Pass pass, Backend backend) {
  if (pass == jit::Pass::fwd || backend == Backend::cpu) return {};
  return k_entries;
}

jit::Specialization specialize(const jit::OpCall& base, Target target, const jit::Tuning&) {
  const auto& call = static_cast<const GrpoLossCall&>(base);
  return {call.op,
          call.pass,
          target,
          {storage_type(call.logits.dtype), call.logits.shape[call.logits.rank - 1],
           call.softcap.has_value(), call.logit_scale != 1.0}};
}

// The CPU's way is logp and ppo_loss, one after the other.
std::vector<jit::Specialization> generic_variants(Target target) {
  std::vector<jit::Specialization> variants;
  if (backend(target) == Backend::cpu) return variants;
  for (auto type : {kTypeFloat32, kTypeBfloat16, kTypeFloat16}) {
    variants.push_back(
        jit::Specialization{&templates::grpo_loss_op, jit::Pass::bwd, target, {type}}.generic());
  }
  return variants;
}

std::vector<jit::Specialization> model_variants(const jit::ModelShape& shape, DType dtype,
                                                jit::Pass pass, Target target, const jit::Tuning&) {
  check_logp_model(templates::grpo_loss_op, shape);
  if (pass == jit::Pass::fwd || backend(target) == Backend::cpu) return {};
  if (!grpo_loss_takes(shape.vocab)) return {};
  return {{&templates::grpo_loss_op,
           pass,
           target,
           {storage_type(dtype), shape.vocab, shape.softcap.has_value(), shape.logit_scale != 1}}};
}

}  // namespace

namespace templates {
const jit::Op grpo_loss_op{
    "grpo_loss",      k_constants, check_grpo_loss,        specialize,
    launch_grpo_loss, entries,     grpo_loss_shared_bytes, generic_variants,
    model_variants,
};
}  // namespace templates

}  // namespace rlk
