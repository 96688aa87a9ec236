// SPDX-License-Identifier: Apache-2.0
// Stage 10 of logp.
#pragma once

#include "jit/op.hpp"
#include "templates/logp/cuda_args.h"

namespace rlk {

struct LogpCall;

std::span<const char* const> logp_entries(jit::Pass pass, Backend backend);

// Most dynamic shared memory of a CUDA launch: the partials of a row's leaves.
int logp_shared_bytes(const jit::Specialization& spec);

void launch_logp(const LoadedKernel& kernel, const jit::OpCall& call,
                 const jit::LaunchSettings& settings);

// Logits [..., V] as CUDA kernels read them.
LogpCudaMatrix logp_cuda_matrix(const Tensor& tensor);

void launch_logp_cpu(const LoadedKernel& kernel, const LogpCall& call);
void launch_logp_cuda(const LoadedKernel& kernel, const LogpCall& call,
                      const jit::LaunchSettings& settings);

}  // namespace rlk
