// SPDX-License-Identifier: Apache-2.0
// RLK_JIT=async: the generic kernel runs while the specialized one is made in the background.
#include "jit/dispatcher.hpp"
#include "runtime/error.hpp"
#include "runtime/log.hpp"

namespace rlk::jit {

bool Dispatcher::make_in_background(const Missing& missing, Variant& meanwhile) {
  bool is_new = false;
  {
    const std::lock_guard lock(mutex_);
    auto& slot = background_kernels_[missing.spec];
    is_new = slot == nullptr;
    if (is_new) slot = std::make_shared<BackgroundKernel>();
    meanwhile.background = slot;
  }
  // Not new where configure() had the fallbacks forgotten.
  if (!is_new) return true;
  try {
    background_.add([this, missing, background = meanwhile.background, note = note_of(meanwhile)] {
      run_in_background(missing, note, *background);
    });
    return true;
  } catch (const Refused& refused) {
    meanwhile.background = nullptr;
    meanwhile.is_refused = true;
    meanwhile.reason = refused.what();
    forget_background(missing.spec);
    return false;
  }
}

// `note`: what runs instead; "": nobody has called it yet, who is told of no failure.
void Dispatcher::run_in_background(const Missing& missing, const std::string& note,
                                   BackgroundKernel& background) {
  const std::shared_lock building(building_);
  if (background.is_begun.exchange(true)) return;
  try {
    background.kernel = make(missing);
  } catch (const std::exception& error) {
    background.failure = error.what();
    background.is_refused = is_refusal(error);
    if (!note.empty() && !cancels_) {
      warn_once(fmt::format("{}: {}: {}", missing.spec.text(), note, background.failure),
                background.failure);
    }
    forget_background(missing.spec);  // after a configure() it is tried again
  }
  background.is_done.store(true, std::memory_order_release);
}

// What runs for this call, whose fallback was found loaded: that, or what has come in its place.
const Variant& Dispatcher::take_over(const OpCall& call, const Specialization& spec,
                                     const Variant& fallback) {
  const auto& background = fallback.background;
  // A graph under capture keeps the kernel that it began with.
  if (background == nullptr || !background->is_done.load(std::memory_order_acquire) ||
      tools(spec).loader->is_capturing(call.device.index, call.stream)) {
    count_fallback(fallback);
    return fallback;
  }
  if (background->kernel == nullptr) {
    count_fallback(fallback);
    if (background->is_refused) {
      table_.forget_fallback(spec);
      return fallback;
    }
    // Said already, unless it was compiled ahead of its first call.
    warn_once(fmt::format("{}: {}: {}", spec.text(), note_of(fallback), background->failure),
              background->failure);
    Variant lasting = fallback;
    lasting.reason = background->failure;
    lasting.background = nullptr;
    return table_.replace_fallback(spec, std::move(lasting));
  }
  return table_.replace_fallback(spec, {.kernel = background->kernel});
}

}  // namespace rlk::jit
