// SPDX-License-Identifier: Apache-2.0
// What a call would run, from the table, the layers and the compiler, as Dispatcher::run asks them.
#include "jit/build_key.hpp"
#include "jit/dispatcher.hpp"

#include <algorithm>

namespace rlk::jit {
namespace {

// The specialized kernel that runs for this one: itself, or one of another tile.
Specialization spec_of(const Specialization& spec, const LoadedKernel& kernel) {
  return {spec.op, spec.pass, kernel.target, kernel.constants};
}

}  // namespace

Explanation Dispatcher::explain(const OpCall& call) {
  call.op->check(call);
  const Specialization spec = specialize(call);
  std::shared_lock building(building_);
  const Session session = this->session();
  const auto describe = [&](const Specialization& which) {
    return Explanation{which.text(), build_key(which).digest(),
                       which.is_generic() ? "generic" : "specialized", "", ""};
  };
  if (const auto variant = table_.look_up(spec)) {
    const bool is_generic = variant->is_fallback && !variant->is_alternative;
    auto result = describe(is_generic ? spec.generic() : spec_of(spec, *variant->kernel));
    result.source = "loaded";
    result.reason = variant->is_fallback ? variant->reason : "it runs already in this process";
    const auto& coming = variant->coming;
    if (coming && coming->is_done && coming->kernel) {
      result = describe(spec);
      result.source = "loaded";
      result.reason = "it was compiled in the background and takes over at the next call";
    } else if (coming && coming->is_done) {
      result.reason = coming->failure;
    }
    return result;
  }
  auto result = describe(spec);
  if (get(session, spec, build_key(spec))) {
    result.source = "cache";
    result.reason = "an entry of this key lies in a cache layer";
    return result;
  }
  const auto why = why_not_compile(session, spec);
  if (why.empty()) {
    result.source = "compile";
    result.reason = "no cache layer has it; the first call compiles it";
    return result;
  }
  // As find_alternative() looks for them.
  const auto others = spec.op->alternatives(spec);
  const auto is_loaded = [&](const Specialization& other) {
    const auto variant = table_.look_up(other);
    return variant && !variant->is_fallback;
  };
  const auto is_cached = [&](const Specialization& other) {
    return get(session, other, build_key(other)).has_value();
  };
  auto other = std::ranges::find_if(others, is_loaded);
  const bool any_is_loaded = other != others.end();
  if (!any_is_loaded) other = std::ranges::find_if(others, is_cached);
  if (other != others.end()) {
    result = describe(*other);
    result.source = any_is_loaded ? "loaded" : "cache";
    result.reason = why + "; another tile gives the same bits";
    return result;
  }
  result = describe(spec.generic());
  const bool found = get(session, spec.generic(), build_key(spec.generic())).has_value();
  result.source = found ? "cache" : "none";
  result.reason = why;
  return result;
}

}  // namespace rlk::jit
