// SPDX-License-Identifier: Apache-2.0
// Stage 9: from an artifact's bytes to code that can be launched. One loader per backend.
#pragma once

#include "runtime/loaded_kernel.hpp"

#include <cstddef>
#include <memory>
#include <span>
#include <string>

namespace rlk::runtime {

// The device and driver for which a choice of tiles was measured.
struct DeviceModel {
  std::string name;    // "NVIDIA H100 80GB HBM3"
  std::string driver;  // its CUDA version: "12.8"

  bool operator==(const DeviceModel&) const = default;
};

class Loader {
 public:
  virtual ~Loader() = default;

  // What device `index` of this backend runs. It is asked in every call. Throws Unsupported if the
  // device can run no kernel of ours.
  virtual Target target(int index) = 0;

  // Throws as target() does. Empty for the CPU, for which nothing is measured.
  virtual DeviceModel model(int /*index*/) { return {}; }

  // Fills entries (in the order of `entries`) and image. Throws LoadError where the bytes are no
  // code of this backend or lack an entry. Any thread.
  virtual void load(LoadedKernel& kernel, std::span<const std::byte> code,
                    std::span<const char* const> entries) = 0;

  // The last step of a load, for a device that will launch the kernel. Throws DriverError.
  virtual void prepare(const LoadedKernel& kernel, int device) = 0;

  // Whether a graph is being captured from this stream: nothing may be loaded then.
  virtual bool is_capturing(int device, void* stream) = 0;
};

// Relocatable ELF objects, mapped into this process; LLVM is not involved.
std::unique_ptr<Loader> make_cpu_loader();

}  // namespace rlk::runtime
