// SPDX-License-Identifier: Apache-2.0
// RLK_VALIDATE=sync: the values of a CUDA call are looked at on the host before the launch.
#pragma once

#include "runtime/cuda/driver.hpp"
#include "templates/linear_logp/op.hpp"

namespace rlk {

// Waits for the call's stream, then throws what the CPU would: InvalidArgument for a target,
// temperature or mask value. Throws Unsupported while the stream is being captured.
void validate_linear_logp_cuda(runtime::cuda::Driver& driver, const LinearLogpCall& call);

}  // namespace rlk
