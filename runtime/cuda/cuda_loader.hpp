// SPDX-License-Identifier: Apache-2.0
// Stage 9 on CUDA: cubin or PTX to kernels that every device of the target can launch.
#pragma once

#include "runtime/cuda/driver.hpp"
#include "runtime/cuda/launch.hpp"
#include "runtime/loader.hpp"

#include <functional>
#include <memory>

namespace rlk::runtime::cuda {

// Fills LoadedKernel::entries with LoadedEntry*. `driver` is asked for at the first load, so that
// making a loader opens nothing; it throws LoadError where there is none.
std::unique_ptr<Loader> make_cuda_loader(std::function<Driver&()> driver = Driver::instance);

inline LoadedEntry& entry(const LoadedKernel& kernel, int index) {
  return *static_cast<LoadedEntry*>(kernel.entries[static_cast<std::size_t>(index)]);
}

}  // namespace rlk::runtime::cuda
