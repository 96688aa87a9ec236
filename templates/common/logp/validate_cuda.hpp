// SPDX-License-Identifier: Apache-2.0
// RLK_VALIDATE=sync: the values of a CUDA call are looked at on the host before the launch.
#pragma once

#include "runtime/cuda/driver.hpp"
#include "templates/common/logp/call.hpp"

namespace rlk {

// `matrix` and `vocab` as in active_rows. Waits for the call's stream, then throws what the CPU
// would: InvalidArgument for a target, temperature or mask value. Throws Unsupported while the
// stream is being captured.
void validate_logp_cuda(runtime::cuda::Driver& driver, const LogpCallBase& call,
                        const Tensor& matrix, std::int64_t vocab);

}  // namespace rlk
