// SPDX-License-Identifier: Apache-2.0
// Stage 10 of ppo_loss: what the kernels take, from what the caller gave.
#pragma once

#include "jit/op.hpp"

namespace rlk {

struct PpoLossCall;

std::span<const char* const> ppo_loss_entries(jit::Pass pass, Backend backend);

void launch_ppo_loss(const LoadedKernel& kernel, const jit::OpCall& call,
                     const jit::LaunchSettings& settings);

// Everything of the arguments but pointers to arrays: choices, values, sizes.
struct PpoLossArgs;
PpoLossArgs ppo_loss_sizes(const PpoLossCall& call);

void launch_ppo_loss_cpu(const LoadedKernel& kernel, const PpoLossCall& call);
void launch_ppo_loss_cuda(const LoadedKernel& kernel, const PpoLossCall& call, bool validate_sync);

// Boundaries, mask and global counts of a call on the host. Throws InvalidArgument.
void expect_ppo_loss_values(const PpoLossCall& call);

}  // namespace rlk
