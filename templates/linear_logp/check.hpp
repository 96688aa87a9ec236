// SPDX-License-Identifier: Apache-2.0
// Checks of linear_logp's arguments; all throw InvalidArgument naming the argument.
#pragma once

#include "jit/op.hpp"

namespace rlk {

void check_linear_logp(const jit::OpCall& call);

// The temperature rounded to fp32, then inverted by one fp32 division; throws unless it is finite,
// above 0 and has a normal inverse.
float inverse_temperature(double temperature);

// The softcap rounded to fp32, then inverted in the same way; throws likewise.
float inverse_softcap(double softcap);

}  // namespace rlk
