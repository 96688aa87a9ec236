// SPDX-License-Identifier: Apache-2.0
// logp: log-probabilities of target ids from logits. Its call, and the stages that its files make.
#pragma once

#include "templates/common/logp/call.hpp"
#include "templates/logp/cuda_args.h"

#include <span>

namespace rlk {

struct LogpCall : LogpCallBase {
  Tensor logits;          // [..., V]; float32, bfloat16 or float16
  bool in_place = false;  // the backward writes over the logits: grad_logits is logits

  Tensor grad_logits;  // backward: written; shape and dtype of logits
  Tensor unless_one;   // backward: optional, one float32; where it is 1 nothing is done

  std::int64_t vocab() const { return logits.shape[logits.rank - 1]; }
};

inline constexpr jit::Parameter k_logits_parameter[] = {
    {"logits", jit::Kind::tensor, jit::field_of<&LogpCall::logits>}};

// Variants of an op whose logits are given, for a model's head.
std::vector<jit::Specialization> logp_model_variants(const jit::Op& op, LogpCall&& call,
                                                     const jit::ModelShape& shape, DType dtype,
                                                     jit::Pass pass, Target target);

void check_logp(const jit::OpCall& call);
void check_logits(const LogpCall& call);  // but for what logp alone takes

std::span<const char* const> logp_entries(jit::Pass pass, Backend backend);

// Most dynamic shared memory of a CUDA launch: the partials of a row's leaves.
int logp_shared_bytes(const jit::Specialization& spec);

void launch_logp(const LoadedKernel& kernel, const jit::OpCall& call,
                 const jit::LaunchSettings& settings);
void launch_logp_cpu(const LoadedKernel& kernel, const LogpCall& call);
void launch_logp_cuda(const LoadedKernel& kernel, const LogpCall& call,
                      const jit::LaunchSettings& settings);

// Logits [..., V] as CUDA kernels read them.
LogpCudaMatrix logp_cuda_matrix(const Tensor& tensor);

namespace templates {
extern const jit::Op logp_op;
}

}  // namespace rlk
