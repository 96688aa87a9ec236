// SPDX-License-Identifier: Apache-2.0
// Stage 10 of linear_logp: what the kernels take, from what the caller gave.
#pragma once

#include "jit/op.hpp"
#include "templates/linear_logp/cpu_args.h"

namespace rlk {

void launch_linear_logp(const LoadedKernel& kernel, const jit::OpCall& call,
                        const jit::LaunchSettings& settings);

constexpr CpuType cpu_type(DType dtype) {
  return dtype == DType::f32 ? kTypeFloat32 : dtype == DType::bf16 ? kTypeBfloat16 : kTypeFloat16;
}

}  // namespace rlk
