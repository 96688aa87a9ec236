// SPDX-License-Identifier: Apache-2.0
// Error words in pinned memory that every device can write and the host reads without a call.
#include "templates/common/device_errors.hpp"

#include "runtime/cuda/launch.hpp"

#include <array>
#include <atomic>
#include <mutex>

namespace rlk::templates {
namespace {

using namespace runtime::cuda;

struct Word {
  std::atomic<DeviceError*> error{nullptr};
  Driver* driver = nullptr;  // set before error
};
std::array<Word, k_max_devices> words;

}  // namespace

DeviceError& device_error(Driver& driver, int device) {
  Word& word = words.at(static_cast<std::size_t>(device));
  if (DeviceError* error = word.error.load(std::memory_order_acquire)) return *error;
  static std::mutex making;
  const std::lock_guard lock(making);
  if (DeviceError* error = word.error.load(std::memory_order_relaxed)) return *error;
  const DeviceGuard guard(driver, device);
  const RelaxedCapture relaxed(driver);
  constexpr unsigned k_portable_and_mapped = 1 | 2;
  void* memory = nullptr;
  driver.check(driver.table().mem_host_alloc(&memory, sizeof(DeviceError), k_portable_and_mapped),
               "cuMemHostAlloc");
  auto* error = new (memory) DeviceError{};
  word.driver = &driver;
  word.error.store(error, std::memory_order_release);
  return *error;
}

void raise_device_error(DeviceError& error) {
  std::atomic_ref state(error.state);
  unsigned expected = state.load(std::memory_order_acquire);
  if (expected <= DeviceError::kBeingWritten) return;
  const DeviceError found = error;
  if (!state.compare_exchange_strong(expected, DeviceError::kNone)) return;  // told elsewhere
  if (found.state == DeviceError::kIdOutOfRange) {
    throw InvalidArgument(Fault{found.op, "target", fmt::format("ids in [0, {})", found.num_ids),
                                fmt::format("{} in row {}", found.id, found.row)});
  }
  const bool is_group = found.state == DeviceError::kBadGroup;
  throw InvalidArgument(Fault{found.op, is_group ? "group_boundaries" : "cu_seqlens",
                              fmt::format("to start at 0, {} and end at the last",
                                          is_group ? "to increase" : "not to decrease"),
                              fmt::format("{} to {} at {}", found.first, found.last, found.row)});
}

void check_device_errors(std::optional<int> device) {
  for (int i = 0; i < k_max_devices; ++i) {
    if (device && *device != i) continue;
    const Word& word = words[static_cast<std::size_t>(i)];
    DeviceError* error = word.error.load(std::memory_order_acquire);
    if (error == nullptr) continue;
    {
      const DeviceGuard guard(*word.driver, i);
      word.driver->check(word.driver->table().ctx_synchronize(), "cuCtxSynchronize");
    }
    raise_device_error(*error);
  }
}

}  // namespace rlk::templates
