// SPDX-License-Identifier: Apache-2.0
// What tells variants of kernels of log-probs apart.
#pragma once

#include "jit/op.hpp"
#include "templates/common/logp/cpu_types.h"

namespace rlk {

// Words of the codes of CpuType, which are those of CUDA's templates too.
inline constexpr std::string_view k_type_words[] = {"none", "f32", "bf16", "f16"};
inline constexpr std::string_view k_off_on[] = {"", "yes"};

// Of kernels that read logits. Entropy comes last: an op that has none leaves it out.
inline constexpr jit::ConstantDef k_logits_constants[] = {
    {"x", "kX", k_type_words, /*may_be_run_time=*/false},
    {"V", "kV"},
    {"softcap", "kSoftcap", k_off_on},
    {"logit_scale", "kLogitScale", k_off_on},
    {"entropy", "kEntropy", k_off_on},
};

constexpr CpuType storage_type(DType dtype) {
  return dtype == DType::f32 ? kTypeFloat32 : dtype == DType::bf16 ? kTypeBfloat16 : kTypeFloat16;
}

}  // namespace rlk
