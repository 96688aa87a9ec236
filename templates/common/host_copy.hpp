// SPDX-License-Identifier: Apache-2.0
// RLK_VALIDATE=sync: small tensors of a CUDA call, read on the host before its launch.
#pragma once

#include "jit/op.hpp"
#include "runtime/cuda/driver.hpp"

#include <cstddef>
#include <vector>

namespace rlk::templates {

// Waits for the stream of the call: what writes its values has ended then. Throws Unsupported while
// the stream is being captured.
void wait_for_values(runtime::cuda::Driver& driver, const jit::OpCall& call);

// Bytes from the first to the last element, in place of the tensor's memory. An absent tensor
// stays.
class HostCopy {
 public:
  HostCopy(runtime::cuda::Driver& driver, Tensor& tensor);

  HostCopy(const HostCopy&) = delete;  // the tensor points into it

 private:
  std::vector<std::byte> bytes_;
};

}  // namespace rlk::templates
