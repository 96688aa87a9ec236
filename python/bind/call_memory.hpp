// SPDX-License-Identifier: Apache-2.0
// Temporary memory of a CUDA call, from the framework of its tensors.
#pragma once

#include "python/bind/tensor_argument.hpp"
#include "runtime/workspace.hpp"

#include <memory>

namespace rlk::bind {

// By the framework's allocator where there is one, else from the driver's pool on `stream`.
std::unique_ptr<runtime::Workspace> make_workspace(const Framework& framework, Device device,
                                                   void* stream);

}  // namespace rlk::bind
