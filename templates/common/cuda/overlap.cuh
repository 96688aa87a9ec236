// SPDX-License-Identifier: Apache-2.0
// For kernels that are launched with LaunchDims::overlaps.
#pragma once

#include "common/cuda/base.cuh"

namespace rlk {

// Every thread calls it before it touches global memory: returns once all launches before this one
// have ended and what they wrote is seen. The next launch may take its place on the card by then,
// and waits likewise.
RLK_DEVICE void wait_for_last_launch() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

}  // namespace rlk
