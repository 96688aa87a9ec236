// SPDX-License-Identifier: Apache-2.0
// Temporary device memory for one call, from the caller's framework.
#pragma once

#include <cstddef>

namespace rlk::runtime {

class Workspace {
 public:
  virtual ~Workspace() = default;

  // Memory of the call's device, 256-byte aligned, for work on the call's stream; the stream's
  // later work may have it once this object is destroyed. Called without the GIL. Throws
  // DriverError.
  virtual void* allocate(std::size_t bytes) = 0;
};

}  // namespace rlk::runtime
