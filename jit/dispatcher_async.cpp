// SPDX-License-Identifier: Apache-2.0
// RLK_JIT=async: the generic kernel runs while the specialized one is made in the background.
#include "jit/dispatcher.hpp"
#include "runtime/error.hpp"
#include "runtime/log.hpp"

namespace rlk::jit {

Variant Dispatcher::make_in_background(const Missing& missing) {
  KernelPtr generic;
  try {
    generic = find_generic(missing.spec, missing.device, "no generic kernel");
  } catch (const Unsupported&) {
    return {.kernel = make(missing)};  // nothing could run meanwhile
  }
  std::shared_ptr<ComingKernel> coming;
  bool is_new = false;
  {
    const std::lock_guard lock(mutex_);
    auto& slot = coming_[missing.spec];
    is_new = slot == nullptr;
    if (is_new) slot = std::make_shared<ComingKernel>();
    coming = slot;
  }
  // Not new where configure() had the fallbacks forgotten.
  if (is_new) background_.add([this, missing, coming] { run_in_background(missing, *coming); });
  return {.kernel = generic,
          .is_fallback = true,
          .reason = "the specialized kernel is compiled in the background",
          .coming = std::move(coming)};
}

void Dispatcher::run_in_background(const Missing& missing, ComingKernel& coming) {
  const std::shared_lock building(building_);
  try {
    coming.kernel = make(missing);
  } catch (const std::exception& error) {
    coming.failure = error.what();
    warn_once(
        fmt::format("{}: the generic kernel runs instead: {}", missing.spec.text(), coming.failure),
        coming.failure);
    const std::lock_guard lock(mutex_);
    coming_.erase(missing.spec);  // after a configure() it is tried again
  }
  coming.is_done.store(true, std::memory_order_release);
}

void Dispatcher::take_over(const OpCall& call, const Specialization& spec,
                           KernelTable::Held& variant) {
  const auto& coming = variant->coming;
  // A graph under capture keeps the kernel that it began with.
  if (coming == nullptr || !coming->is_done.load(std::memory_order_acquire) ||
      tools(spec).loader->is_capturing(call.device.index, call.stream)) {
    fallbacks_.fetch_add(1, std::memory_order_relaxed);
    return;
  }
  if (coming->kernel == nullptr) {
    fallbacks_.fetch_add(1, std::memory_order_relaxed);
    variant = table_.replace_fallback(
        spec, {.kernel = variant->kernel, .is_fallback = true, .reason = coming->failure});
    return;
  }
  {
    const std::lock_guard lock(mutex_);
    coming_.erase(spec);  // the table alone owns the kernel from now on
  }
  variant = table_.replace_fallback(spec, {.kernel = coming->kernel});
  unload_surplus();
}

}  // namespace rlk::jit
