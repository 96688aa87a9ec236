// SPDX-License-Identifier: Apache-2.0
// Asks the store for traces.
#include "jit/layer_places.hpp"

#include "jit/build_key.hpp"

namespace rlk::jit {

const std::vector<cache::Candidate>& LayerPlaces::trace(const Specialization& spec) {
  const auto known = traces_.find(spec);
  if (known != traces_.end()) return known->second;
  return traces_.emplace(spec, store_.trace(build_key(spec), compiler_)).first->second;
}

}  // namespace rlk::jit
