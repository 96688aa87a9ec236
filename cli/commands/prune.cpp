// SPDX-License-Identifier: Apache-2.0
// rlk-jit prune and rlk-jit clear: what goes by rule.
#include "cli/commands.hpp"
#include "cli/query/cached_kernel.hpp"
#include "cli/text/table.hpp"
#include "jit/warm/manifest.hpp"
#include "runtime/error.hpp"
#include "runtime/given_text.hpp"
#include "templates/registry.hpp"

#include <fmt/format.h>

#include <ctime>
#include <unordered_map>

namespace rlk::cli {
namespace {

cache::SweepLimits limits_of(const Context& context, const PruneOptions& options) {
  cache::SweepLimits limits;
  limits.dry_run = options.dry_run;
  std::uint64_t most_bytes = 0;  // none
  if (options.max_size) {
    constexpr auto source = "--max-size";
    constexpr auto expected = "a size above 0, such as 500M or 1GiB (rlk-jit clear removes all)";
    most_bytes = bytes_named(*options.max_size, source, expected);
    if (most_bytes == 0) {
      throw InvalidArgument(Fault{"", source, expected, in_quotes(*options.max_size)});
    }
  }
  if (options.older_than) limits.most_idle_s = seconds_named(*options.older_than, "--older-than");
  if (!options.max_size && !options.older_than) most_bytes = context.settings.cache_size_bytes;
  if (most_bytes > 0) limits.most_bytes = limits.down_to_bytes = most_bytes;
  return limits;
}

// What is known of a file that is gone, from the listing before. One stored in between has no name.
class Removed {
 public:
  explicit Removed(const Context& context) : kernels_(all_kernels(context)) {
    for (const CachedKernel& kernel : kernels_) by_path_.emplace(kernel.entry.path, &kernel);
  }

  Json json_of(const std::string& path) const {
    const CachedKernel* kernel = find(path);
    Json json;
    json["name"] = kernel != nullptr ? Json(kernel->name()) : Json();
    json["key"] = kernel != nullptr ? Json(kernel->entry.digest) : Json();
    json["path"] = path;
    json["file_bytes"] = kernel != nullptr ? Json(kernel->entry.file_bytes) : Json();
    json["last_used"] = kernel != nullptr ? Json(kernel->entry.modified_s) : Json();
    return json;
  }

  std::vector<Cell> row_of(const std::string& path, std::int64_t now_s) const {
    const CachedKernel* kernel = find(path);
    if (kernel == nullptr) return {{printable(path)}, {"-"}, {"-"}, {""}};
    return {{shown_name(*kernel)},
            {bytes_text(kernel->entry.file_bytes)},
            {age_text(now_s - kernel->entry.modified_s)},
            {kernel->entry.digest.substr(0, k_shown_key_digits), Colour::dim}};
  }

 private:
  const CachedKernel* find(const std::string& path) const {
    const auto found = by_path_.find(path);
    return found != by_path_.end() ? found->second : nullptr;
  }

  std::vector<CachedKernel> kernels_;
  std::unordered_map<std::string, const CachedKernel*> by_path_;
};

Json json_of(const cache::Swept& swept) {
  Json json;
  json["removed_entries"] = swept.num_removed;
  json["removed_bytes"] = swept.removed_bytes;
  json["kept_entries"] = swept.num_entries;
  json["kept_bytes"] = swept.bytes;
  json["leftovers"] = swept.leftovers;
  json["problem"] = or_null(swept.problem);
  return json;
}

std::string summary_of(const cache::Swept& swept, bool dry_run) {
  std::string text = fmt::format("{} {}, {}", dry_run ? "would remove" : "removed",
                                 entries_text(swept.num_removed), bytes_text(swept.removed_bytes));
  if (!swept.leftovers.empty()) {
    const std::size_t num = swept.leftovers.size();
    text += fmt::format(" and {} temp {} of writers that died", num, num == 1 ? "file" : "files");
  }
  return text + fmt::format("; {} {}, {}", dry_run ? "would keep" : "kept",
                            entries_text(swept.num_entries), bytes_text(swept.bytes));
}

// After the report: what was removed is told even if the manifest cannot be written.
int finish(const Context& context, const jit::Layers& layers, const cache::Swept& swept,
           bool dry_run) {
  const int code = swept.problem.empty() ? ok : tell(context, swept.problem);
  if (!dry_run && swept.num_removed > 0) jit::trim_manifest(layers.options, templates::ops());
  return code;
}

// Whether a person says so.
bool confirm(const Context& context, const std::string& folder) {
  std::size_t num_entries = 0;
  std::uint64_t num_bytes = 0;
  for (const CachedKernel& kernel : all_kernels(context)) {
    if (!kernel.entry.layer.read_write) continue;
    ++num_entries;
    num_bytes += kernel.entry.file_bytes;
  }
  context.err << fmt::format("Remove {} ({}) from {}? [y/N] ", entries_text(num_entries),
                             bytes_text(num_bytes), printable(folder))
              << std::flush;
  std::string answer;
  std::getline(*context.answers, answer);
  return answer == "y" || answer == "Y" || answer == "yes";
}

}  // namespace

int prune(const Context& context, const PruneOptions& options) {
  const cache::SweepLimits limits = limits_of(context, options);
  const jit::Layers layers = layers_of(context);
  if (!has_read_write(context, layers)) return failed;
  const Removed removed(context);
  const cache::Swept swept = cache::DiskStore(layers.options).prune(limits);
  if (context.json) {
    Json json = json_of(swept);
    json["dry_run"] = options.dry_run;
    json["removed"] = Json::array();
    for (const std::string& path : swept.removed) json["removed"].push_back(removed.json_of(path));
    print_json(context.out, json);
  } else {
    Table table({{"NAME"}, {"SIZE", Align::right}, {"UNUSED", Align::right}, {"KEY"}});
    const std::int64_t now_s = std::time(nullptr);
    for (const std::string& path : swept.removed) table.add(removed.row_of(path, now_s));
    if (!swept.removed.empty()) table.print(context.out, context.colour);
    context.out << summary_of(swept, options.dry_run) << '\n';
  }
  return finish(context, layers, swept, options.dry_run);
}

int clear(const Context& context, bool is_sure) {
  const jit::Layers layers = layers_of(context);
  if (!has_read_write(context, layers)) return failed;
  if (!is_sure && context.answers == nullptr) {
    throw InvalidArgument("clear: expected --yes where nobody can be asked");
  }
  if (!is_sure && !confirm(context, *layers.options.read_write)) {
    return tell(context, "nothing removed");
  }
  const cache::Swept swept = cache::DiskStore(layers.options).clear();
  if (context.json) {
    print_json(context.out, json_of(swept));
  } else {
    context.out << summary_of(swept, false) << '\n';
  }
  return finish(context, layers, swept, false);
}

}  // namespace rlk::cli
