// SPDX-License-Identifier: Apache-2.0
// Where kernels lie for who explains a decision: in the cache layers. Logs and touches nothing.
#pragma once

#include "cache/disk_store.hpp"
#include "jit/decision.hpp"

#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

namespace rlk::jit {

class LayerPlaces : public Places {
 public:
  // `compiler` is what a get asks for: the identity of the one at hand.
  LayerPlaces(cache::DiskStore& store, std::string compiler)
      : store_(store), compiler_(std::move(compiler)) {}
  virtual ~LayerPlaces() = default;

  // A process that has called nothing has loaded nothing.
  bool is_loaded(const Specialization&) override { return false; }
  bool is_cached(const Specialization& spec) override { return cache::is_hit(trace(spec)); }

  // What a get of the kernel comes to. Each is looked for once.
  const std::vector<cache::Candidate>& trace(const Specialization& spec);

 private:
  cache::DiskStore& store_;
  const std::string compiler_;
  std::unordered_map<Specialization, std::vector<cache::Candidate>, SpecializationHash> traces_;
};

}  // namespace rlk::jit
