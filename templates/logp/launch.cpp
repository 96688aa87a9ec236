// SPDX-License-Identifier: Apache-2.0
// Entry points of logp, and the choice of the backend.
#include "templates/logp/launch.hpp"

#include "templates/logp/op.hpp"

#include <algorithm>

namespace rlk {
namespace {

constexpr const char* k_cpu_fwd[] = {"rlk_logp_fwd_main", "rlk_logp_fwd_merge"};
constexpr const char* k_cpu_bwd[] = {"rlk_logp_bwd_main"};
constexpr const char* k_cuda_fwd[] = {"rlk_logp_fwd_pack", "rlk_logp_fwd_main",
                                      "rlk_logp_fwd_merge"};
constexpr const char* k_cuda_bwd[] = {"rlk_logp_bwd_pack", "rlk_logp_bwd_main"};

}  // namespace

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
  const auto vocab = spec.values[1], entropy = spec.values[4];
  return logp_partial_bytes(vocab < 0 ? kLogpMostSharedLeaves : logp_num_leaves(vocab),
                            entropy != 0);
}

void launch_logp(const LoadedKernel& kernel, const jit::OpCall& base,
                 const jit::LaunchSettings& settings) {
  const auto& call = static_cast<const LogpCall&>(base);
  backend(kernel.target) == Backend::cuda ? launch_logp_cuda(kernel, call, settings)
                                          : launch_logp_cpu(kernel, call);
}

}  // namespace rlk
