// SPDX-License-Identifier: Apache-2.0
// logp for the dispatcher: its constants, entry points and stages.
#include "templates/logp/op.hpp"

#include "templates/common/logp/check.hpp"
#include "templates/common/logp/variants.hpp"
#include "templates/logp/check.hpp"
#include "templates/logp/launch.hpp"

namespace rlk {
namespace {

jit::Specialization specialize(const jit::OpCall& base, Target target, const jit::Tuning&) {
  const auto& call = static_cast<const LogpCall&>(base);
  return {call.op,
          call.pass,
          target,
          {storage_type(call.logits.dtype), call.logits.shape[call.logits.rank - 1],
           call.softcap.has_value(), call.logit_scale != 1.0, call.needs_entropy()}};
}

std::vector<jit::Specialization> generic_variants(Target target) {
  std::vector<jit::Specialization> variants;
  for (auto pass : {jit::Pass::fwd, jit::Pass::bwd}) {
    for (auto type : {kTypeFloat32, kTypeBfloat16, kTypeFloat16}) {
      variants.push_back(jit::Specialization{&templates::logp_op, pass, target, {type}}.generic());
    }
  }
  return variants;
}

std::vector<jit::Specialization> model_variants(const jit::ModelShape& shape, DType dtype,
                                                jit::Pass pass, Target target, const jit::Tuning&) {
  check_logp_model(templates::logp_op, shape);
  std::vector<jit::Specialization> variants;
  for (const bool entropy : {false, true}) {
    if (entropy && !shape.entropy) continue;
    variants.push_back({&templates::logp_op,
                        pass,
                        target,
                        {storage_type(dtype), shape.vocab, shape.softcap.has_value(),
                         shape.logit_scale != 1, entropy}});
  }
  return variants;
}

}  // namespace

namespace templates {
const jit::Op logp_op{
    "logp",       k_logits_constants, check_logp,       specialize,     launch_logp,
    logp_entries, logp_shared_bytes,  generic_variants, model_variants,
};
}  // namespace templates

}  // namespace rlk
