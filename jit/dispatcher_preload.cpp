// SPDX-License-Identifier: Apache-2.0
// Loading ahead of the first call.
#include "jit/dispatcher.hpp"
#include "runtime/error.hpp"

namespace rlk::jit {

Preloaded Dispatcher::preload(const std::vector<Specialization>& kernels, const Device& device) {
  const Target own = target(device);
  Preloaded result;
  for (const Specialization& spec : kernels) {
    const bool is_there = spec.target == own && preload_one(spec, device.index);
    (is_there ? result.loaded : result.missing).push_back(spec.text());
  }
  return result;
}

bool Dispatcher::preload_one(const Specialization& spec, int device) {
  const auto load_from_layers = [&]() -> KernelPtr {
    const std::shared_lock building(building_);
    const Missing missing = this->missing(spec, device);
    return get_and_load(missing, spec, missing.key);
  };
  if (const Variant* variant = table_.look_up(spec)) {
    if (variant->is_fallback()) {
      KernelPtr kernel = load_from_layers();
      if (!kernel) return false;
      variant = &table_.replace_fallback(spec, {.kernel = std::move(kernel)});
    }
    tools(spec).loader->prepare(*variant->kernel, device);
    return true;
  }
  try {
    table_.look_up_or_build(spec, [&]() -> Variant {
      KernelPtr kernel = load_from_layers();
      if (!kernel) throw Unsupported("{}: in no layer", spec.text());
      return {.kernel = std::move(kernel)};
    });
    return true;
  } catch (const Unsupported&) {
    return false;
  } catch (const Refused&) {
    throw;
  } catch (const CompileError&) {
    return false;  // remembered: a call has tried to compile it
  } catch (const LoadError&) {
    return false;
  }
}

}  // namespace rlk::jit
