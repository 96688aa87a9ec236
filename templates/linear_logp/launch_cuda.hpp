// SPDX-License-Identifier: Apache-2.0
// Runs the steps of a loaded CUDA kernel of linear_logp: copies, strips, waves, workspace.
#pragma once

#include "templates/linear_logp/op.hpp"

namespace rlk {

std::span<const char* const> linear_logp_cuda_entries(jit::Pass pass);

// Whether the forward takes the loop of sm_90a; x: type code of hidden and weight.
bool linear_logp_uses_sm90_loop(int x, Target target);

// Most dynamic shared memory of a step; tile: value of kTile.
int linear_logp_cuda_shared_bytes(int x, Target target, jit::Pass pass, int tile);

// Queues the call on its stream. Throws InvalidArgument for an id that an earlier call of this
// device found out of range, or with validate_sync this one; DriverError.
void launch_linear_logp_cuda(const LoadedKernel& kernel, const LinearLogpCall& call,
                             const jit::LaunchSettings& settings);

}  // namespace rlk
