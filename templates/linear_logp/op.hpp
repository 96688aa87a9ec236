// SPDX-License-Identifier: Apache-2.0
// linear_logp: log-probabilities of target ids straight from hidden states. Its call, and the
// stages that its files make.
#pragma once

#include "templates/common/logp/call.hpp"

#include <optional>
#include <span>

namespace rlk {

// Shapes: hidden [..., D], weight [V, D], target [...], bias [V]; values per row: [...].
struct LinearLogpCall : LogpCallBase {
  Tensor hidden, weight;    // float32, bfloat16 or float16, the same
  Tensor bias;              // optional; hidden's dtype or float32
  std::optional<int> tile;  // CUDA: in place of the one that is chosen; an index of tile_names

  // Backward: gradients that are absent are not computed.
  Tensor grad_hidden, grad_weight, grad_bias;
};

// Index of the constant kTile among the op's constants.
extern const std::size_t k_linear_logp_tile;

void check_linear_logp(const jit::OpCall& call);

void launch_linear_logp(const LoadedKernel& kernel, const jit::OpCall& call,
                        const jit::LaunchSettings& settings);

std::span<const char* const> linear_logp_cuda_entries(jit::Pass pass);

// Whether the forward takes the loop of sm_90a; x: type code of hidden and weight.
bool linear_logp_uses_sm90_loop(int x, Target target);

// Most dynamic shared memory of a step; tile: value of kTile.
int linear_logp_cuda_shared_bytes(int x, Target target, jit::Pass pass, int tile);

// Queues the call on its stream. Throws InvalidArgument for an id that an earlier call of this
// device found out of range, or with validate_sync this one; DriverError.
void launch_linear_logp_cuda(const LoadedKernel& kernel, const LinearLogpCall& call,
                             const jit::LaunchSettings& settings);

namespace templates {
extern const jit::Op linear_logp_op;
}

}  // namespace rlk
