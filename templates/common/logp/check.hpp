// SPDX-License-Identifier: Apache-2.0
// Checks of what calls of all log-prob ops have; all throw InvalidArgument naming op and argument.
#pragma once

#include "templates/common/logp/call.hpp"

namespace rlk {

// `matrix` [..., columns] gives the shape of tensors a row, and the device; `name` is its name.
void check_logp_options(const LogpCallBase& call, const Tensor& matrix, const char* name);

// The backward's upstream gradients, and what they need.
void check_logp_gradients(const LogpCallBase& call, const Tensor& matrix, const char* name);

// What a model does to its logits, as a call of the op would check it.
void check_logp_model(const jit::Op& op, const jit::ModelShape& shape);

// The temperature rounded to fp32, then inverted by one fp32 division; throws unless it is finite,
// above 0 and has a normal inverse.
float inverse_temperature(const LogpCallBase& call, double temperature);

// The softcap rounded to fp32, then inverted in the same way; throws likewise.
float inverse_softcap(const LogpCallBase& call, double softcap);

}  // namespace rlk
