// SPDX-License-Identifier: Apache-2.0
// What a call would run: the decision that Dispatcher::run follows, put into words.
#include "jit/build_key.hpp"
#include "jit/dispatcher.hpp"
#include "jit/layer_places.hpp"

namespace rlk::jit {
namespace {

class TableAndLayers final : public LayerPlaces {
 public:
  TableAndLayers(const KernelTable& table, cache::DiskStore& store, const std::string& compiler)
      : LayerPlaces(store, compiler), table_(table) {}

  bool is_loaded(const Specialization& spec) override {
    const Variant* variant = table_.look_up(spec);
    return variant != nullptr && !variant->is_fallback();
  }

 private:
  const KernelTable& table_;
};

// Of a kernel that is loaded, or whose fallback is.
Decision decision_of(const Specialization& spec, const Variant& variant) {
  const LoadedKernel& kernel = *variant.kernel;
  Decision decision{
      {spec.op, spec.pass, kernel.target, kernel.constants}, Origin::loaded, variant.fallback};
  decision.reason = variant.is_fallback() ? variant.reason : "it runs already in this process";
  const auto& background = variant.background;
  if (background == nullptr || !background->is_done) return decision;
  if (background->kernel) {
    return {.kernel = spec,
            .origin = Origin::loaded,
            .reason = "it was compiled in the background and takes over at the next call"};
  }
  decision.reason = background->failure;
  return decision;
}

}  // namespace

Explanation Dispatcher::explain(const OpCall& call) {
  call.op->check(call);
  const Specialization spec = specialize(call);
  const std::shared_lock building(building_);
  Decision decision;
  if (const Variant* variant = table_.look_up(spec)) {
    decision = decision_of(spec, *variant);
  } else {
    const Missing missing = this->missing(spec, call.device.index);
    TableAndLayers places(table_, *missing.session.store, missing.compiler.identity);
    decision = decide(spec, missing.compiler, places);
    if (const auto made = background(spec)) {
      const bool is_done = made->is_done.load(std::memory_order_acquire);
      if (is_done && made->kernel) {
        decision = {spec, Origin::loaded};
        decision.reason = "it was compiled beside the forward";
      } else if (!is_done && decision.origin == Origin::compile) {
        decision.reason =
            "it is compiled since the forward was called; its first call waits for it";
      }
    }
  }
  const bool is_alternative = decision.fallback == Fallback::alternative;
  return {decision.kernel.text(), build_key(decision.kernel).digest(),
          decision.kernel.is_generic() ? "generic" : "specialized",
          std::string(name(decision.origin)),
          decision.reason + (is_alternative ? "; another tile gives the same bits" : "")};
}

}  // namespace rlk::jit
