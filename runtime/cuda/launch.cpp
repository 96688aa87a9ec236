// SPDX-License-Identifier: Apache-2.0
// Prepares an entry once per device, then launches it.
#include "runtime/cuda/launch.hpp"

#include <fmt/format.h>

#include <optional>

namespace rlk::runtime::cuda {
namespace {

bool ask_capturing(const Driver& driver, Stream stream) {
  CaptureStatus status = CaptureStatus::none;
  const Result code = driver.table().stream_is_capturing(stream, &status);
  // The legacy stream answers so while a stream that it waits for is capturing.
  if (code == result::capture_implicit) return true;
  driver.check(code, "cuStreamIsCapturing");
  return status != CaptureStatus::none;
}

// The driver takes a CUkernel in a CUfunction's place and finds the current context's function;
// a CUfunction of our own would be stale after a reset of the device.
Result queue(const DriverTable& table, Kernel kernel, Stream stream, const LaunchDims& dims,
             void** arguments) {
  const auto function = reinterpret_cast<Function>(kernel);
  if (dims.cluster == 1 && !dims.overlaps) {
    return table.launch_kernel(function, dims.grid.x, dims.grid.y, dims.grid.z, dims.block.x,
                               dims.block.y, dims.block.z, dims.shared_bytes, stream, arguments,
                               nullptr);
  }
  std::array<LaunchAttribute, 2> attributes{};
  unsigned num_attributes = 0;
  if (dims.cluster > 1) {
    attributes[num_attributes++] = {LaunchAttribute::k_cluster, 0, dims.cluster};
  }
  if (dims.overlaps) attributes[num_attributes++] = {LaunchAttribute::k_overlap};
  const LaunchConfig config{dims.grid.x,       dims.grid.y,   dims.grid.z,       dims.block.x,
                            dims.block.y,      dims.block.z,  dims.shared_bytes, stream,
                            attributes.data(), num_attributes};
  return table.launch_kernel_ex(&config, function, arguments, nullptr);
}

}  // namespace

LoadedEntry::LoadedEntry(Driver& driver, Kernel kernel, std::string name)
    : driver_(driver), kernel_(kernel), name_(std::move(name)) {}

bool LoadedEntry::is_prepared(DeviceOrdinal device) const {
  return device >= 0 && device < k_max_devices &&
         prepared_[static_cast<std::size_t>(device)].load(std::memory_order_acquire);
}

void LoadedEntry::prepare(DeviceOrdinal device) {
  if (is_prepared(device)) return;
  const DeviceInfo& info = driver_.device(device);
  if (device >= k_max_devices) {
    throw Unsupported(Fault{"", "device",
                            fmt::format("one of cuda:0 to cuda:{}", k_max_devices - 1),
                            fmt::format("cuda:{}", device)});
  }
  const DeviceGuard guard(driver_, device);
  const RelaxedCapture relaxed(driver_);
  const DriverTable& table = driver_.table();
  Function function = nullptr;
  driver_.check(table.kernel_get_function(&function, kernel_), "cuKernelGetFunction");
  int static_bytes = 0;
  driver_.check(table.kernel_get_attribute(&static_bytes, KernelAttribute::static_shared_bytes,
                                           kernel_, device),
                "cuKernelGetAttribute");
  // Set once, and before the flag: two threads may both do it, to the same value.
  driver_.check(table.kernel_set_attribute(KernelAttribute::max_dynamic_shared_bytes,
                                           info.shared_bytes_optin - static_bytes, kernel_, device),
                "cuKernelSetAttribute");
  prepared_[static_cast<std::size_t>(device)].store(true, std::memory_order_release);
}

void LoadedEntry::launch(DeviceOrdinal device, Stream stream, const LaunchDims& dims,
                         void** arguments) {
  const DeviceGuard guard(driver_, device);
  if (!is_prepared(device)) {
    if (ask_capturing(driver_, stream)) {
      throw Unsupported(
          "{}: stream: expected a kernel that was launched before on cuda:{}, got a first launch "
          "inside a CUDA graph capture; call once before the capture, or rlk.jit.preload()",
          name_, device);
    }
    prepare(device);
  }
  // The driver delays parts of a load until the first launch, so that launch counts as a load.
  std::optional<RelaxedCapture> relaxed;
  auto& launched = launched_[static_cast<std::size_t>(device)];
  if (!launched.load(std::memory_order_relaxed)) relaxed.emplace(driver_);
  const Result code = queue(driver_.table(), kernel_, stream, dims, arguments);
  if (code == result::success) {
    if (relaxed) launched.store(true, std::memory_order_relaxed);
  } else {
    const bool has_clusters = dims.cluster > 1;
    driver_.fail(code, has_clusters || dims.overlaps ? "cuLaunchKernelEx" : "cuLaunchKernel",
                 fmt::format("{} of {}x{}x{} blocks of {}x{}x{} threads, {} bytes dynamic shared{}",
                             name_, dims.grid.x, dims.grid.y, dims.grid.z, dims.block.x,
                             dims.block.y, dims.block.z, dims.shared_bytes,
                             has_clusters ? fmt::format(", clusters of {}", dims.cluster) : ""));
  }
}

bool is_capturing(Driver& driver, DeviceOrdinal device, Stream stream) {
  const DeviceGuard guard(driver, device);
  return ask_capturing(driver, stream);
}

}  // namespace rlk::runtime::cuda
