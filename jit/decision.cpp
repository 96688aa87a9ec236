// SPDX-License-Identifier: Apache-2.0
// The order of the choices: the kernel itself, a compile, another tile, the generic kernel.
#include "jit/decision.hpp"

#include "jit/op.hpp"

#include <vector>

namespace rlk::jit {
namespace {

Decision first_of(const std::vector<Specialization>& kernels, Fallback fallback, Places& places) {
  for (const Specialization& kernel : kernels) {
    if (places.is_loaded(kernel)) return {kernel, Origin::loaded, fallback};
  }
  for (const Specialization& kernel : kernels) {
    if (places.is_cached(kernel)) return {kernel, Origin::cache, fallback};
  }
  return {};
}

std::vector<Specialization> generic_kernels(const Specialization& spec) {
  std::vector<Specialization> kernels{spec.generic()};
  // PTX runs on every card, with the same bits, where the driver refuses the cubin.
  if (backend(spec.target) == Backend::cuda && spec.target != Target::compute_80) {
    kernels.push_back(kernels.front());
    kernels.back().target = Target::compute_80;
  }
  std::erase(kernels, spec);
  return kernels;
}

}  // namespace

std::string_view name(Origin origin) {
  switch (origin) {
    case Origin::loaded:
      return "loaded";
    case Origin::cache:
      return "cache";
    case Origin::compile:
      return "compile";
    case Origin::none:
      break;
  }
  return "none";
}

CompilerAtHand compiler_at_hand(Policy policy, const Compiler& compiler) {
  if (policy == Policy::off) return {"", "RLK_JIT=off, nothing is compiled"};
  std::string why_not = compiler.why_not();
  if (!why_not.empty()) return {"", std::move(why_not)};
  return {compiler.identity(), "", policy == Policy::async};
}

Decision find_alternative(const Specialization& spec, Places& places) {
  return first_of(spec.op->alternatives(spec), Fallback::alternative, places);
}

Decision find_generic(const Specialization& spec, Places& places) {
  return first_of(generic_kernels(spec), Fallback::generic, places);
}

Decision decide_fallback(const Specialization& spec, const std::string& reason, Places& places) {
  // The same bits in any case; another tile is nearer in speed than the generic kernel.
  Decision decision = find_alternative(spec, places);
  if (decision.origin == Origin::none) decision = find_generic(spec, places);
  if (decision.origin == Origin::none) decision.kernel = spec.generic();
  decision.reason = reason;
  return decision;
}

Decision decide(const Specialization& spec, const CompilerAtHand& compiler, Places& places) {
  Decision own = first_of({spec}, Fallback::none, places);
  if (own.origin != Origin::none) {
    own.reason = own.origin == Origin::cache ? "an entry of this key lies in a cache layer"
                                             : "it runs already in this process";
    return own;
  }
  own = {spec, Origin::compile};
  own.reason = "no cache layer has it; the first call compiles it";
  const bool compiles = compiler.why_not.empty();
  if (compiles && !compiler.in_background) return own;
  Decision fallback = decide_fallback(
      spec, compiles ? "the specialized kernel is compiled in the background" : compiler.why_not,
      places);
  if (!compiles) return fallback;
  if (fallback.origin == Origin::none) return own;  // nothing could run meanwhile
  fallback.in_background = true;
  return fallback;
}

}  // namespace rlk::jit
