// SPDX-License-Identifier: Apache-2.0
// rlk-jit remove.
#include "cli/commands.hpp"
#include "cli/query/cached_kernel.hpp"
#include "cli/text/table.hpp"
#include "jit/warm/manifest.hpp"
#include "templates/registry.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <unordered_set>

namespace rlk::cli {
namespace {

// What may be removed for the word; nothing after telling why.
std::vector<const CachedKernel*> removable(const Context& context,
                                           const std::vector<CachedKernel>& kernels,
                                           const std::string& word, bool all_matching) {
  const auto found = kernels_named(kernels, word);
  if (found.empty()) {
    tell_missing(context, word);
    return {};
  }
  std::vector<const CachedKernel*> ours;
  std::ranges::copy_if(found, std::back_inserter(ours),
                       [](const CachedKernel* kernel) { return kernel->entry.layer.read_write; });
  if (ours.empty()) {
    tell(context,
         fmt::format("\"{}\": only in the read-only layer {}, from which nothing is removed", word,
                     found.front()->entry.layer.folder));
  } else if (ours.size() > 1 && !all_matching) {
    tell_candidates(context, word, ours);
    context.err << "--all-matching removes them all\n";
    ours.clear();
  }
  return ours;
}

void print(const Context& context, const std::vector<const CachedKernel*>& removed) {
  if (context.json) {
    std::vector<std::string> lines;
    lines.reserve(removed.size());
    for (const CachedKernel* kernel : removed) lines.push_back(line_of(json_of(context, *kernel)));
    print_json_lines(context.out, lines);
    return;
  }
  Table table({{""}, {""}, {"", Align::right}, {""}});
  for (const CachedKernel* kernel : removed) {
    table.add({{"removed", Colour::dim},
               {shown_name(*kernel)},
               {bytes_text(kernel->entry.file_bytes)},
               {kernel->entry.digest.substr(0, k_shown_key_digits), Colour::dim}});
  }
  table.print(context.out, context.colour);
}

}  // namespace

int remove(const Context& context, const RemoveOptions& options) {
  const jit::Layers layers = layers_of(context);
  if (!has_read_write(context, layers)) return failed;
  cache::DiskStore store(layers.options);
  const std::vector<CachedKernel> kernels = all_kernels(context);
  std::vector<const CachedKernel*> removed;
  std::unordered_set<const CachedKernel*> seen;  // two words may mean one
  bool is_well = true;
  for (const std::string& word : options.words) {
    const auto chosen = removable(context, kernels, word, options.all_matching);
    is_well = is_well && !chosen.empty();
    for (const CachedKernel* kernel : chosen) {
      if (!seen.insert(kernel).second) continue;
      if (const std::string problem = store.remove(kernel->entry); !problem.empty()) {
        tell(context, problem);
        is_well = false;
      } else {
        removed.push_back(kernel);
      }
    }
  }
  print(context, removed);
  if (!removed.empty()) jit::trim_manifest(layers.options, templates::ops());
  return is_well ? ok : failed;
}

}  // namespace rlk::cli
