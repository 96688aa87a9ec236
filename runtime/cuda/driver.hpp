// SPDX-License-Identifier: Apache-2.0
// libcuda.so.1: opened at first use, its functions, its errors, its devices.
#pragma once

#include "runtime/cuda/driver_api.hpp"
#include "runtime/error.hpp"
#include "runtime/target.hpp"

#include <algorithm>
#include <atomic>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace rlk::runtime::cuda {

// A DriverError that knows the driver's code: "cuLaunchKernel: CUDA_ERROR_INVALID_VALUE (1): ...".
class CallError : public DriverError {
 public:
  CallError(Result code, const std::string& message) : DriverError("{}", message), code_(code) {}
  Result code() const { return code_; }

 private:
  Result code_;
};

struct DeviceInfo {
  DeviceOrdinal ordinal = 0;
  std::string name;
  int major = 0, minor = 0;  // compute capability
  int num_sms = 0;
  int shared_bytes_optin = 0;  // most shared memory a block can ask for
  std::size_t memory_bytes = 0;
  std::optional<Target> target;  // nothing below 8.0

  // Those of a setting, 0: all.
  int sms_within(int max_sms) const { return max_sms > 0 ? std::min(max_sms, num_sms) : num_sms; }
};

class Driver {
 public:
  // Opens the library and asks for its functions; initializes nothing. Throws LoadError where
  // there is no driver or it is older than CUDA 12.0.
  explicit Driver(const std::string& library = "libcuda.so.1");
  Driver(const Driver&) = delete;
  Driver& operator=(const Driver&) = delete;

  // The driver of this process; a failure to open it is remembered and thrown again.
  static Driver& instance();
  // The same without throwing: nullptr, and in `why` what is missing.
  static Driver* find(std::string* why = nullptr) noexcept;

  // Functions that need no device; for the others call init() first.
  const DriverTable& table() const { return table_; }

  // CUDA's version as the driver counts it: 12080 is 12.8. Works on a machine without a GPU and
  // initializes nothing, so that a later fork() is safe.
  int version() const { return version_; }

  // cuInit, once. Throws CallError; in a forked child of an initialized process too.
  void init();

  // Throws CallError unless code is success. `call` is the driver's name for the function.
  void check(Result code, const char* call) const {
    if (code != result::success) fail(code, call, {});
  }
  [[noreturn]] void fail(Result code, const char* call, const std::string& note) const;
  std::string error_name(Result code) const;  // "CUDA_ERROR_INVALID_VALUE (1)"

  // Every device that this process may see, found once. Throws CallError.
  const std::vector<DeviceInfo>& devices();
  const DeviceInfo& device(DeviceOrdinal ordinal);  // throws InvalidArgument if there is none

  // The context that frameworks use on a device; retained once and kept.
  Context primary_context(DeviceOrdinal ordinal);

 private:
  struct Found;

  DriverTable table_;
  int version_ = 0;
  std::atomic<bool> initialized_{false};
  std::atomic<bool> listed_{false};
  std::mutex mutex_;  // guards the making of what follows
  std::vector<DeviceInfo> devices_;
  std::vector<std::atomic<Context>> contexts_;
};

// Makes a device current while it lives. Keeps a context of that device that is current already,
// be it the primary one or the caller's own.
class DeviceGuard {
 public:
  DeviceGuard(Driver& driver, DeviceOrdinal ordinal);
  DeviceGuard(const DeviceGuard&) = delete;
  DeviceGuard& operator=(const DeviceGuard&) = delete;
  ~DeviceGuard();

 private:
  Driver& driver_;
  bool pushed_ = false;
};

// Lets this thread load code while another thread captures a graph: in the other modes a load is
// refused and the other thread's capture is lost.
class RelaxedCapture {
 public:
  explicit RelaxedCapture(Driver& driver);
  RelaxedCapture(const RelaxedCapture&) = delete;
  RelaxedCapture& operator=(const RelaxedCapture&) = delete;
  ~RelaxedCapture();

 private:
  Driver& driver_;
  CaptureMode mode_ = CaptureMode::relaxed;
};

}  // namespace rlk::runtime::cuda
