// SPDX-License-Identifier: Apache-2.0
// Is what was to be in the layers there, and can this machine's driver load it?
#include "cli/doctor/findings.hpp"
#include "cli/query/kernel_choice.hpp"
#include "jit/build_key.hpp"
#include "jit/warm/preload_list.hpp"
#include "templates/registry.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <set>
#include <span>

namespace rlk::cli {
namespace {

constexpr std::size_t k_most_named = 3;

std::vector<std::string> folders_of(const jit::Layers& layers) {
  std::vector<std::string> folders = layers.options.read_only;
  if (layers.options.read_write) folders.insert(folders.begin(), *layers.options.read_write);
  return folders;
}

std::string first_of(const std::vector<std::string>& names) {
  const std::span first(names.data(), std::min(names.size(), k_most_named));
  std::string text = fmt::format("{}", fmt::join(first, ", "));
  if (first.size() == names.size()) return text;
  return fmt::format("{} and {} more", text, names.size() - first.size());
}

// Kernels that are wanted, and those of them that no layer has, whoever compiled them.
Finding examine_kernels(cache::DiskStore& store, const std::string& whose,
                        const std::vector<jit::Specialization>& kernels) {
  std::vector<std::string> missing;
  for (const auto& kernel : kernels) {
    if (!store.get(jit::build_key(kernel), "")) missing.push_back(kernel.text());
  }
  Finding finding{"kernels", missing.empty() ? State::good : State::fail,
                  fmt::format("{} of {} {} are cached", kernels.size() - missing.size(),
                              kernels.size(), whose)};
  if (!missing.empty()) {
    finding.text += fmt::format("; missing: {}; rlk-jit warm compiles them", first_of(missing));
  }
  finding.details = {{"wanted", kernels.size()}, {"missing", missing}};
  return finding;
}

// Of the cards' targets: kernels of those, and whether the driver is new enough for each.
class CardExamination {
 public:
  CardExamination(const std::vector<CachedKernel>& kernels, const jit::Layers& layers,
                  const CudaMachine& machine)
      : kernels_(kernels), builtin_(layers.options.read_only.back()), machine_(machine) {}

  void run(const std::vector<Target>& targets, Findings& findings) {
    std::set<std::string> others;  // targets of kernels that are for other cards
    std::vector<std::string> too_new;
    std::size_t num_own = 0;
    int newest = 0;
    for (const CachedKernel& kernel : kernels_) {
      const auto target = target_named(kernel.metadata.target);
      const auto needed = driver_needed(kernel);
      if (!target || !needed || kernel.entry.layer.folder == builtin_) continue;
      if (std::ranges::find(targets, *target) == targets.end()) {
        others.insert(kernel.metadata.target);
        continue;
      }
      ++num_own;
      if (*needed <= machine_.driver->version()) continue;
      too_new.push_back(kernel.name());
      newest = std::max(newest, *needed);
    }
    if (!too_new.empty()) {
      findings.push_back(
          {"driver",
           State::warn,
           fmt::format("{} of the kernels here need a driver of CUDA {} or later, this one is of "
                       "CUDA {}: {}; "
                       "rlk-jit warm --cuda {} makes them for it",
                       too_new.size(), cuda_text(newest), cuda_text(machine_.driver->version()),
                       first_of(too_new), machine_.driver->version() / 1000),
           {{"needed", cuda_text(newest)}, {"kernels", too_new}}});
    }
    if (num_own == 0 && !others.empty()) {
      findings.push_back({"kernels",
                          State::warn,
                          fmt::format("none for this card, only for {}", fmt::join(others, ", ")),
                          {{"targets", others}}});
    }
  }

 private:
  const std::vector<CachedKernel>& kernels_;
  const std::string& builtin_;
  const CudaMachine& machine_;
};

}  // namespace

void examine_readiness(const Context& context, const jit::Layers& layers, cache::DiskStore& store,
                       const CudaMachine& machine, const KernelChoice& choice, Findings& findings) {
  const auto cards = card_targets(context.settings, machine.driver);
  const auto here = cards.empty() ? own_targets(context.settings) : cards;
  auto targets = named_targets(choice);
  if (!choice.models.empty()) {
    findings.push_back(
        examine_kernels(store, "of the models' kernels", chosen_kernels(context, choice, here)));
  } else {
    const bool is_asked = !targets.empty();
    if (!is_asked) targets = here;
    std::vector<jit::Specialization> kernels;
    for (const Target target : targets) {
      for (const auto& kernel :
           jit::manifest_kernels(folders_of(layers), target, templates::ops())) {
        kernels.push_back(kernel);
      }
    }
    if (!kernels.empty()) {
      findings.push_back(examine_kernels(store, "of the manifests' kernels", kernels));
    } else if (is_asked) {
      findings.push_back(
          {"kernels",
           State::fail,
           fmt::format("no manifest lists any for {}; rlk-jit warm writes one", names_of(targets)),
           {{"wanted", 0}}});
    }
  }
  if (!cards.empty()) CardExamination(all_kernels(context), layers, machine).run(cards, findings);
}

}  // namespace rlk::cli
