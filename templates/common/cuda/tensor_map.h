// SPDX-License-Identifier: Apache-2.0
// Shared by host and kernels, so it includes nothing.
#pragma once

namespace rlk {

// What cuTensorMapEncodeTiled fills: a matrix in memory and the boxes that are copied from it. An
// argument of a kernel, by value.
struct alignas(64) TensorMap {
  char bytes[128];
};

}  // namespace rlk
