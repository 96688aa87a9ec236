// SPDX-License-Identifier: Apache-2.0
// Copies the small tensors of a call to the host, where the CPU's own check reads them.
#include "runtime/cuda/launch.hpp"
#include "templates/common/host_copy.hpp"
#include "templates/common/logp/host.hpp"

namespace rlk {

void validate_logp_cuda(runtime::cuda::Driver& driver, const LogpCallBase& call,
                        const Tensor& matrix, std::int64_t vocab) {
  templates::wait_for_values(driver, call);
  const runtime::cuda::DeviceGuard guard(driver, call.device.index);
  LogpCallBase host = call;
  const templates::HostCopy target(driver, host.target), mask(driver, host.mask),
      temperature(driver, host.temperature);
  host.pass = jit::Pass::fwd;  // grad_output may have any value
  active_rows(host, matrix, vocab);
}

}  // namespace rlk
