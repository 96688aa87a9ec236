// SPDX-License-Identifier: Apache-2.0
// What a call for a target would run, from the generic kernels that are there.
#include "cli/doctor/findings.hpp"
#include "jit/layer_places.hpp"
#include "jit/op.hpp"
#include "runtime/error.hpp"
#include "templates/registry.hpp"

#include <fmt/format.h>

namespace rlk::cli {

std::vector<jit::Specialization> generic_variants(Target target) {
  std::vector<jit::Specialization> all;
  for (const jit::Op* op : templates::ops()) {
    for (const auto& spec : op->generic_variants(target)) all.push_back(spec);
  }
  return all;
}

Finding examine_calls(const Context& context, cache::DiskStore& store, std::string subject,
                      Target target, const jit::Compiler* compiler) {
  const bool is_off = context.settings.policy == Policy::off;
  jit::CompilerAtHand at_hand{"", "none works"};
  if (compiler != nullptr) at_hand = jit::compiler_at_hand(context.settings.policy, *compiler);
  const bool compiles = at_hand.why_not.empty();
  jit::LayerPlaces places(store, at_hand.identity);
  std::size_t num_found = 0;
  const auto specs = generic_variants(target);
  for (const auto& spec : specs) {
    try {
      num_found += jit::decide(spec, at_hand, places).origin == jit::Origin::cache ? 1 : 0;
    } catch (const Error&) {
      // No template for this target in this build: not found.
    }
  }
  const std::string generic = fmt::format("{} of {} generic kernels for {} found", num_found,
                                          specs.size(), rlk::name(target));
  const bool has_all = num_found == specs.size() && !specs.empty();
  Finding finding{std::move(subject), State::good, "", Json::object()};
  finding.details["target"] = rlk::name(target);
  finding.details["compiles"] = compiles;
  finding.details["generic_found"] = num_found;
  finding.details["generic_known"] = specs.size();
  if (compiles) {
    finding.text = "run specialized kernels, compiled at first use; " + generic;
  } else if (is_off) {
    finding.state = has_all ? State::good : State::fail;
    finding.text = "run only what is cached (RLK_JIT=off); " + generic;
  } else if (has_all) {
    finding.state = State::warn;
    finding.text = "run cached kernels, else generic ones; " + generic;
  } else {
    finding.state = State::fail;
    finding.text = "cannot run without a compiler; " + generic;
  }
  return finding;
}

}  // namespace rlk::cli
