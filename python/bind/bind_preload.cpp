// SPDX-License-Identifier: Apache-2.0
// preload: kernels loaded ahead of their first call.
#include "jit/dispatcher.hpp"
#include "jit/warm/preload_list.hpp"
#include "python/bind/module.hpp"
#include "python/bind/without_gil.hpp"
#include "runtime/error.hpp"
#include "templates/registry.hpp"

#include <pybind11/stl.h>

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

namespace rlk::bind {
namespace {

using Words = std::optional<std::vector<std::string>>;

std::vector<std::string> folders_of(const jit::Dispatcher& dispatcher) {
  std::vector<std::string> folders;
  for (const auto& state : dispatcher.store()->layers()) folders.push_back(state.layer.folder);
  return folders;
}

// Of a thing that is wanted, one set loaded whole is enough; else what lacks of the set of which
// most is there, the first of several.
void preload_wanted(const std::string& word, const Device& device, jit::Preloaded& all) {
  auto& dispatcher = jit::Dispatcher::instance();
  const auto tuning_of = [&](const jit::Op& op, jit::Pass pass) {
    return dispatcher.tuning(op, pass, device);
  };
  const bool keep = dispatcher.saved_mib() > 0;
  for (const auto& wanted :
       jit::wanted_kernels(word, dispatcher.target(device), tuning_of, templates::ops(), keep)) {
    std::vector<jit::Preloaded> sets;
    for (const auto& kernels : wanted.any_of) sets.push_back(dispatcher.preload(kernels, device));
    const auto num_loaded = [](const jit::Preloaded& set) { return set.loaded.size(); };
    const auto is_whole = [](const jit::Preloaded& set) { return set.missing.empty(); };
    if (std::ranges::none_of(sets, is_whole)) {
      const auto& most = *std::ranges::max_element(sets, {}, num_loaded);
      all.missing.insert(all.missing.end(), most.missing.begin(), most.missing.end());
    }
    for (const auto& set : sets) {
      all.loaded.insert(all.loaded.end(), set.loaded.begin(), set.loaded.end());
    }
  }
}

// (names loaded, names missing) on a CPU (no index) or a CUDA device.
std::pair<std::vector<std::string>, std::vector<std::string>> preload(
    const Words& words, const std::optional<int>& cuda_index) {
  jit::Preloaded all;
  without_gil([&] {
    auto& dispatcher = jit::Dispatcher::instance();
    const Device device = cuda_index ? Device{Device::Kind::cuda, *cuda_index} : Device{};
    if (words) {
      for (const auto& word : *words) preload_wanted(word, device, all);
    } else {
      const Target target = dispatcher.target(device);
      all = dispatcher.preload(
          jit::manifest_kernels(folders_of(dispatcher), target, templates::ops()), device);
    }
  });
  return {std::move(all.loaded), std::move(all.missing)};
}

// What the device's calls run, and the folders of the layers.
std::pair<std::string, std::vector<std::string>> describe(const std::optional<int>& cuda_index) {
  auto& dispatcher = jit::Dispatcher::instance();
  const Device device = cuda_index ? Device{Device::Kind::cuda, *cuda_index} : Device{};
  return {std::string(name(dispatcher.target(device))), folders_of(dispatcher)};
}

}  // namespace

void bind_preload(py::module_& module) {
  module.def("preload", preload);
  module.def("target_and_folders", describe);
}

}  // namespace rlk::bind
