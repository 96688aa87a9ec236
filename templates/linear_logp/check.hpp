// SPDX-License-Identifier: Apache-2.0
// Checks of linear_logp's arguments; all throw InvalidArgument naming the argument.
#pragma once

#include "jit/op.hpp"

namespace rlk {

void check_linear_logp(const jit::OpCall& call);

}  // namespace rlk
