// SPDX-License-Identifier: Apache-2.0
// Kernels that need not be compiled: found, loaded, and used in the place of one that is not there.
#include "jit/build_key.hpp"
#include "jit/dispatcher.hpp"
#include "jit/metadata.hpp"
#include "runtime/error.hpp"
#include "runtime/log.hpp"

namespace rlk::jit {

bool Dispatcher::Loading::is_loaded(const Specialization& spec) {
  kernel_ = dispatcher_.loaded(spec);
  return kernel_ != nullptr;
}

// In the table, or made in the background for its first call.
KernelPtr Dispatcher::loaded(const Specialization& spec) const {
  const Variant* variant = table_.look_up(spec);
  if (variant != nullptr && !variant->is_fallback()) return variant->kernel;
  const auto made = background(spec);
  return made != nullptr && made->is_done.load(std::memory_order_acquire) ? made->kernel : nullptr;
}

bool Dispatcher::Loading::is_cached(const Specialization& spec) {
  const bool is_own = spec == missing_.spec;
  kernel_ = nullptr;
  try {
    kernel_ = dispatcher_.get_and_load(missing_, spec, is_own ? missing_.key : build_key(spec));
  } catch (const Refused& refused) {
    keep_refusal(refused);
  }
  if (!kernel_) return false;
  // Not look_up_or_build(): two threads, each with the other's key in building, would wait.
  if (!is_own) kernel_ = dispatcher_.table_.replace_fallback(spec, {.kernel = kernel_}).kernel;
  return true;
}

// An entry that does not load, as a cubin of a newer toolkit than the driver's, is passed over.
KernelPtr Dispatcher::get_and_load(const Missing& missing, const Specialization& spec,
                                   const cache::Key& key) {
  KernelPtr kernel;
  std::exception_ptr failure;  // not of the code; the store lets nothing through
  std::string refusal;
  missing.session.store->get(
      key, missing.compiler.identity,
      [&](const cache::Entry& entry) {
        try {
          kernel = load_cached(spec, entry, missing.device);
        } catch (...) {
          failure = std::current_exception();
        }
        return kernel != nullptr || failure != nullptr;
      },
      &refusal);
  if (failure) std::rethrow_exception(failure);
  if (!kernel && !refusal.empty()) throw Refused("{}", refusal);
  return kernel;
}

KernelPtr Dispatcher::load_cached(const Specialization& spec, const cache::Entry& entry,
                                  int device) {
  try {
    KernelPtr kernel = load(spec, entry, device);
    disk_hits_.fetch_add(1, std::memory_order_relaxed);
    record(cache::UsageEvent::hit, spec);
    log().info("loaded {} from the cache", kernel->name);
    return kernel;
  } catch (const Refused&) {
    throw;  // of the process, not of the code
  } catch (const LoadError& error) {
    // Sound by its checksum and still not loadable: as good as a miss.
    log().warn("cached entry of {}, made by {}, is passed over: it does not load: {}", spec.text(),
               compiler_named(entry.metadata), error.what());
    return nullptr;
  }
}

// A decision for a kernel that need not be compiled, or not before this call.
Variant Dispatcher::use(const Missing& missing, const Decision& decision, const Loading& found) {
  const Specialization& spec = missing.spec;
  if (decision.origin == Origin::none && !found.refusal().empty()) {
    throw Refused("{}: kernel: expected one for {}, got none: {}", spec.op->name,
                  decision.kernel.text(), found.refusal());
  }
  if (decision.origin == Origin::none) {
    throw Unsupported(
        "{}: kernel: expected one for {}, found none: the built-in layer does not hold it and "
        "nothing can be compiled ({})",
        spec.op->name, decision.kernel.text(), decision.reason);
  }
  if (decision.fallback == Fallback::none) return {.kernel = found.kernel()};
  if (decision.fallback == Fallback::generic) record(cache::UsageEvent::fallback, spec);
  Variant variant{found.kernel(), decision.fallback, decision.reason};
  if (decision.in_background && make_in_background(missing, variant)) return variant;
  // What was refused is the cause, also where nothing would have been compiled.
  if (!found.refusal().empty()) {
    variant.is_refused = true;
    variant.reason = found.refusal();
  }
  const std::string message =
      fmt::format("{}: {}: {}", spec.text(), note_of(variant), variant.reason);
  const bool is_asked_for =
      missing.session.config.settings.policy == Policy::off && !variant.is_refused;
  const bool is_cheap =
      decision.fallback == Fallback::alternative && !missing.compiler.why_not.empty();
  if (is_asked_for || is_cheap) {
    log().info("{}", message);
  } else {
    warn_once(message, variant.reason);
  }
  return variant;
}

void Dispatcher::count_fallback(const Variant& variant) {
  (variant.fallback == Fallback::alternative ? alternatives_ : fallbacks_)
      .fetch_add(1, std::memory_order_relaxed);
}

void Dispatcher::warn_once(const std::string& message, const std::string& reason) {
  std::lock_guard lock(mutex_);
  // One warning a reason: without a compiler a service would else warn for each new shape.
  if (warned_.insert(reason).second) log().warn("{}", message);
}

}  // namespace rlk::jit
