// SPDX-License-Identifier: Apache-2.0
// What runs in the place of a kernel that is in no layer and is not compiled, or not yet.
#include "jit/build_key.hpp"
#include "jit/dispatcher.hpp"
#include "runtime/error.hpp"
#include "runtime/log.hpp"

namespace rlk::jit {

// Of another tile: one that is loaded, else one of the layers.
KernelPtr Dispatcher::find_alternative(const Specialization& spec, int device) {
  const auto others = spec.op->alternatives(spec);
  for (const Specialization& other : others) {
    const Variant* loaded = table_.look_up(other);
    if (loaded != nullptr && !loaded->is_fallback) return loaded->kernel;
  }
  for (const Specialization& other : others) {
    // Not look_up_or_build(): two threads, each with the other's key in building, would wait.
    if (auto kernel = get_and_load(session(), other, build_key(other), device)) {
      return table_.replace_fallback(other, {.kernel = std::move(kernel)}).kernel;
    }
  }
  return nullptr;
}

KernelPtr Dispatcher::find_generic(const Specialization& spec, int device,
                                   const std::string& reason) {
  if (spec.is_generic()) {
    throw Unsupported(
        "{}: kernel: expected one for {}, found none: the built-in layer does not hold it and "
        "nothing can be "
        "compiled ({})",
        spec.op->name, spec.text(), reason);
  }
  const Specialization generic = spec.generic();
  const Variant& variant = table_.look_up_or_build(generic, [&]() -> Variant {
    const Session session = this->session();
    if (auto kernel = get_and_load(session, generic, build_key(generic), device)) {
      return {.kernel = kernel};
    }
    // PTX runs on every card, with the same bits, where the driver refuses the cubin.
    Specialization ptx = generic;
    ptx.target = Target::compute_80;
    if (backend(generic.target) == Backend::cuda && ptx != generic) {
      if (auto kernel = get_and_load(session, ptx, build_key(ptx), device))
        return {.kernel = kernel};
    }
    return {.kernel = find_generic(generic, device, reason)};
  });
  record(cache::UsageEvent::fallback, spec);
  return variant.kernel;
}

// The same bits in any case; another tile is nearer in speed than the generic kernel.
Variant Dispatcher::find_fallback(const Specialization& spec, int device,
                                  const std::string& reason) {
  if (auto kernel = find_alternative(spec, device)) {
    return {.kernel = kernel, .is_fallback = true, .is_alternative = true, .reason = reason};
  }
  return {.kernel = find_generic(spec, device, reason), .is_fallback = true, .reason = reason};
}

Variant Dispatcher::fall_back(const Specialization& spec, int device, const std::string& reason) {
  Variant variant = find_fallback(spec, device, reason);
  const std::string message = fmt::format("{}: {}: {}", spec.text(), note_of(variant), reason);
  if (variant.is_alternative && !why_not_compile(session(), spec).empty()) {
    log().info("{}", message);  // as was to be expected, and it costs little
  } else {
    warn_once(message, reason);
  }
  return variant;
}

void Dispatcher::count_fallback(const Variant& variant) {
  (variant.is_alternative ? alternatives_ : fallbacks_).fetch_add(1, std::memory_order_relaxed);
}

void Dispatcher::warn_once(const std::string& message, const std::string& reason) {
  std::lock_guard lock(mutex_);
  // One warning a reason: with RLK_JIT=off a service would else warn for each new shape.
  if (warned_.insert(reason).second) log().warn("{}", message);
}

}  // namespace rlk::jit
