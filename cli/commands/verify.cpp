// SPDX-License-Identifier: Apache-2.0
// rlk-jit verify.
#include "cli/commands.hpp"
#include "cli/query/cached_kernel.hpp"
#include "cli/query/consistency.hpp"
#include "cli/query/for_each.hpp"
#include "cli/text/table.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <unordered_set>

namespace rlk::cli {
namespace {

struct Verdict {
  const CachedKernel* kernel = nullptr;
  bool is_there = true;  // false: it vanished meanwhile
  std::string problem;   // empty: sound
};

Verdict verdict_of(cache::DiskStore& store, const CachedKernel& kernel) {
  const cache::EntryRead read = store.read(kernel.entry);
  if (read.status == cache::ReadStatus::ok) {
    return {&kernel, true, inconsistency(file_name(kernel), read.entry)};
  }
  return {&kernel, read.status != cache::ReadStatus::absent, read.problem};
}

std::vector<const CachedKernel*> choose(const Context& context,
                                        const std::vector<CachedKernel>& kernels,
                                        const std::vector<std::string>& words, bool& all_found) {
  std::vector<const CachedKernel*> chosen;
  if (words.empty()) {
    for (const CachedKernel& kernel : kernels) chosen.push_back(&kernel);
  }
  std::unordered_set<const CachedKernel*> seen;
  for (const std::string& word : words) {
    const auto found = kernels_named(kernels, word);
    if (found.empty()) {
      tell_missing(context, word);
      all_found = false;
    }
    std::ranges::copy_if(found, std::back_inserter(chosen),
                         [&](const CachedKernel* kernel) { return seen.insert(kernel).second; });
  }
  return chosen;
}

std::string line_of_verdict(const Context& context, const Verdict& verdict) {
  Json json = json_of(context, *verdict.kernel);
  json["problem"] = or_null(verdict.problem);
  return line_of(json);
}

void print_for_people(const Context& context, const std::vector<Verdict>& verdicts,
                      std::size_t num_bad) {
  Table table({{""}, {""}});
  for (const Verdict& verdict : verdicts) {
    if (verdict.problem.empty()) continue;
    table.add({{printable(verdict.kernel->entry.path)}, {printable(verdict.problem), Colour::red}});
  }
  table.print(context.out, context.colour);
  context.out << fmt::format("{} sound", entries_text(verdicts.size() - num_bad));
  if (num_bad > 0) {
    context.out << fmt::format(", {} of no use: a call that needs one goes on without it", num_bad);
  }
  context.out << '\n';
}

}  // namespace

int verify(const Context& context, const std::vector<std::string>& words) {
  const jit::Layers layers = layers_of(context);
  cache::DiskStore store(layers.options);
  const std::vector<CachedKernel> kernels = all_kernels(context);
  bool is_well = true;
  const auto chosen = choose(context, kernels, words, is_well);
  std::vector<Verdict> verdicts(chosen.size());
  for_each_entry(chosen.size(),
                 [&](std::size_t i) { verdicts[i] = verdict_of(store, *chosen[i]); });
  std::erase_if(verdicts, [](const Verdict& verdict) { return !verdict.is_there; });
  const auto num_bad = static_cast<std::size_t>(std::ranges::count_if(
      verdicts, [](const Verdict& verdict) { return !verdict.problem.empty(); }));

  if (context.json) {
    std::vector<std::string> lines;
    lines.reserve(verdicts.size());
    for (const Verdict& verdict : verdicts) lines.push_back(line_of_verdict(context, verdict));
    print_json_lines(context.out, lines);
  } else {
    print_for_people(context, verdicts, num_bad);
  }
  if (!tell_layers(context)) is_well = false;
  for (const std::string& path : store.prune({.dry_run = true}).leftovers) {
    tell(context, path + ": left by a writer that died; rlk-jit prune removes it");
  }
  return is_well && num_bad == 0 ? ok : failed;
}

}  // namespace rlk::cli
