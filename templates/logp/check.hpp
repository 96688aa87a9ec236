// SPDX-License-Identifier: Apache-2.0
// Stage 2 of logp; throws InvalidArgument naming the argument.
#pragma once

#include "jit/op.hpp"

namespace rlk {

struct LogpCall;

// What does not depend on the pass.
void check_logits(const LogpCall& call);

void check_logp(const jit::OpCall& call);

}  // namespace rlk
