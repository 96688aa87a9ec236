// SPDX-License-Identifier: Apache-2.0
// Stage 2 of ppo_loss; throws InvalidArgument naming the argument.
#pragma once

#include "jit/op.hpp"

namespace rlk {

void check_ppo_loss(const jit::OpCall& call);

}  // namespace rlk
