// SPDX-License-Identifier: Apache-2.0
// Finds entries and reads their metadata.
#include "cli/query/cached_kernel.hpp"

#include "cli/query/for_each.hpp"
#include "cli/text/table.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <span>
#include <tuple>
#include <unordered_set>

namespace rlk::cli {
namespace {

constexpr std::size_t k_most_candidates = 20;

std::string file_stem(const CachedKernel& kernel) {
  return kernel.entry.digest + '.' + kernel.entry.compiler;
}

// An entry that an upper layer has too is hidden by it, as it is for a get.
void drop_hidden(std::vector<const CachedKernel*>& found) {
  std::unordered_set<std::string> seen;
  std::erase_if(
      found, [&](const CachedKernel* kernel) { return !seen.insert(file_stem(*kernel)).second; });
}

}  // namespace

std::vector<CachedKernel> all_kernels(const Context& context) {
  cache::DiskStore store(layers_of(context).options);
  std::vector<cache::ListedEntry> entries = store.files();
  std::vector<CachedKernel> kernels(entries.size());
  for_each_chunk(entries.size(), [&](std::size_t begin, std::size_t end) {
    store.read_headers(std::span(entries).subspan(begin, end - begin));
    for (std::size_t i = begin; i < end; ++i) {
      CachedKernel& kernel = kernels[i];
      kernel.entry = std::move(entries[i]);
      if (kernel.entry.problem.empty()) {
        kernel.metadata = jit::listed_metadata(kernel.entry.metadata);
      }
      if (kernel.metadata.created_s < 0) kernel.metadata.created_s = kernel.entry.modified_s;
    }
  });
  std::erase_if(kernels, [](const CachedKernel& kernel) { return !kernel.entry.is_there; });
  for (auto begin = kernels.begin(); begin != kernels.end();) {  // of a layer
    const auto end = std::find_if(begin, kernels.end(), [&](const CachedKernel& kernel) {
      return kernel.entry.layer.folder != begin->entry.layer.folder;
    });
    std::sort(begin, end, [](const CachedKernel& a, const CachedKernel& b) {
      return std::tie(a.name(), a.entry.path) < std::tie(b.name(), b.entry.path);
    });
    begin = end;
  }
  return kernels;
}

std::vector<CachedKernel> all_kernels(const Context& context, const ListFilter& filter) {
  std::vector<CachedKernel> kernels = all_kernels(context);
  const std::string builtin = jit::builtin_folder(context.settings);
  std::erase_if(kernels, [&](const CachedKernel& kernel) {
    return (filter.no_builtin && kernel.entry.layer.folder == builtin) ||
           kernel.name().find(filter.name_part) == std::string::npos;
  });
  return kernels;
}

std::string file_name(const CachedKernel& kernel) {
  return kernel.entry.path.substr(kernel.entry.path.rfind('/') + 1);
}

Json json_of(const Context& context, const CachedKernel& kernel) {
  return {{"name", kernel.name()},
          {"target", kernel.metadata.target},
          {"compiler", kernel.entry.compiler},
          {"key", kernel.entry.digest},
          {"layer", layer_name(context, kernel.entry.layer)},
          {"path", kernel.entry.path},
          {"file_bytes", kernel.entry.file_bytes}};
}

std::vector<const CachedKernel*> kernels_named(const std::vector<CachedKernel>& kernels,
                                               const std::string& word) {
  using Rule = std::function<bool(const CachedKernel&)>;
  const bool is_path = word.find('/') != std::string::npos;
  const std::string path =
      is_path ? std::filesystem::absolute(word).lexically_normal().string() : "";
  const Rule rules[] = {
      [&](const CachedKernel& kernel) { return kernel.name() == word; },
      // Whole first: "llvm-2" is the front of "llvm-20".
      [&](const CachedKernel& kernel) {
        return is_path ? kernel.entry.path == path
                       : file_stem(kernel) == word || file_name(kernel) == word;
      },
      [&](const CachedKernel& kernel) { return file_stem(kernel).starts_with(word); },
      [&](const CachedKernel& kernel) { return kernel.name().find(word) != std::string::npos; },
  };
  std::vector<const CachedKernel*> found;
  if (word.empty()) return found;  // a part of every name
  for (const Rule& matches : rules) {
    for (const CachedKernel& kernel : kernels) {
      if (matches(kernel)) found.push_back(&kernel);
    }
    if (!found.empty()) break;
  }
  return found;
}

std::optional<CachedKernel> find_kernel(const Context& context, const std::string& word) {
  const std::vector<CachedKernel> kernels = all_kernels(context);
  std::vector<const CachedKernel*> found = kernels_named(kernels, word);
  drop_hidden(found);
  if (found.size() == 1) return *found.front();
  if (found.empty()) {
    tell_missing(context, word);
    tell_layers(context);
  } else {
    tell_candidates(context, word, found);
  }
  return std::nullopt;
}

void tell_missing(const Context& context, const std::string& word) {
  tell(context, fmt::format("\"{}\": no entry has this name or key; see rlk-jit list", word));
}

void tell_candidates(const Context& context, const std::string& word,
                     const std::vector<const CachedKernel*>& found) {
  tell(context, fmt::format("\"{}\": {} entries match; name one by KEY.COMPILER or its front:",
                            word, found.size()));
  Table table({{}, {}});
  for (std::size_t i = 0; i < std::min(found.size(), k_most_candidates); ++i) {
    table.add({{printable(file_stem(*found[i]))}, {shown_name(*found[i])}});
  }
  table.print(context.err, false);
  if (found.size() > k_most_candidates) {
    context.err << fmt::format("... and {} more\n", found.size() - k_most_candidates);
  }
}

std::optional<int> driver_needed(const CachedKernel& kernel) {
  const auto target = target_named(kernel.metadata.target);
  if (!target || backend(*target) == Backend::cpu) return std::nullopt;
  int major = 12;
  if (*target != Target::compute_80) std::sscanf(kernel.entry.compiler.c_str(), "nvrtc-%d", &major);
  const bool is_blackwell = *target == Target::sm_100 || *target == Target::sm_120;
  return 1000 * major + (major == 12 && is_blackwell ? 80 : 0);
}

std::string cuda_text(int version) {
  return fmt::format("{}.{}", version / 1000, version % 1000 / 10);
}

std::string shown_name(const CachedKernel& kernel) {
  if (!kernel.entry.problem.empty()) return '(' + printable(kernel.entry.problem) + ')';
  return kernel.name().empty() ? "(no name)" : printable(kernel.name());
}

}  // namespace rlk::cli
