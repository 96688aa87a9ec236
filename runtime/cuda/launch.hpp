// SPDX-License-Identifier: Apache-2.0
// Stage 10 on CUDA: a kernel with its arguments onto a stream.
#pragma once

#include "runtime/cuda/driver.hpp"

#include <array>
#include <atomic>
#include <cstdint>
#include <string>

namespace rlk::runtime::cuda {

inline constexpr int k_max_devices = 64;

struct Dim3 {
  unsigned x = 1, y = 1, z = 1;
};

struct LaunchDims {
  Dim3 grid, block;
  unsigned shared_bytes = 0;  // dynamic
  unsigned cluster = 1;       // blocks, along x, that reach each other's shared memory
  bool overlaps = false;  // begins before the stream's last kernel ends, and waits for it itself
};

// One entry point of a loaded library; what LoadedKernel::entries points to on CUDA. Serves every
// device of its target.
class LoadedEntry {
 public:
  LoadedEntry(Driver& driver, Kernel kernel, std::string name);

  // Makes the code resident on a device and allows it all of the device's shared memory. Loading
  // is lazy in the driver, so without this the first launch would load. Later calls are cheap.
  void prepare(DeviceOrdinal device);
  bool is_prepared(DeviceOrdinal device) const;

  // Queues the kernel; `arguments` holds the address of each argument. The stream is one of that
  // device. Throws Unsupported where the stream is capturing and the kernel was never prepared
  // for the device, CallError where the driver refuses.
  void launch(DeviceOrdinal device, Stream stream, const LaunchDims& dims, void** arguments);

  const std::string& name() const { return name_; }
  Driver& driver() const { return driver_; }

 private:
  Driver& driver_;
  Kernel kernel_;
  std::string name_;
  std::array<std::atomic<bool>, k_max_devices> prepared_{}, launched_{};
};

// Whether a graph is being captured from this stream, or from another in a way that forbids any
// work on this one.
bool is_capturing(Driver& driver, DeviceOrdinal device, Stream stream);

}  // namespace rlk::runtime::cuda
