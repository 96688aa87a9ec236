// SPDX-License-Identifier: Apache-2.0
// rlk-jit stats: what the processes that share the read-write folder have asked for.
#include "cache/entry_name.hpp"
#include "cache/usage_log.hpp"
#include "cli/commands.hpp"
#include "cli/query/cached_kernel.hpp"
#include "cli/query/usage_counts.hpp"
#include "cli/text/table.hpp"

#include <fmt/format.h>

#include <ctime>
#include <map>
#include <optional>

namespace rlk::cli {
namespace {

struct Space {
  std::uint64_t num_entries = 0, bytes = 0;
};

// By the names and sizes of files alone.
Space space_of(const std::string& folder) {
  cache::FileSystem& files = cache::posix_file_system();
  Space space;
  for (const std::string& name : files.list(folder).value) {
    if (!cache::parse_entry_file_name(name)) continue;
    const auto stat = files.stat(fmt::format("{}/{}", folder, name), cache::Links::keep);
    if (!stat) continue;
    ++space.num_entries;
    space.bytes += stat.value.size_bytes;
  }
  return space;
}

// Nothing where nothing has been asked for.
std::optional<double> hit_rate(const Counts& specialized) {
  if (specialized.num_events() == 0) return std::nullopt;
  return static_cast<double>(specialized.hits) / static_cast<double>(specialized.num_events());
}

std::string percent_text(std::optional<double> rate) {
  return rate ? fmt::format("{:.1f} %", 100 * *rate) : "-";
}

std::string space_text(const Space& space, std::uint64_t budget_bytes) {
  const std::string budget = budget_bytes == 0 ? "no limit" : bytes_text(budget_bytes);
  return fmt::format("{}, {} of {}", entries_text(space.num_entries), bytes_text(space.bytes),
                     budget);
}

Json json_of(const Counts& counts) {
  return {{"hits", counts.hits},
          {"compiles", counts.compiles},
          {"failed", counts.failed},
          {"fallbacks", counts.fallbacks},
          {"compile_ms", counts.compile_ms},
          {"last_used", counts.last_used_s > 0 ? Json(counts.last_used_s) : Json()}};
}

using ByKernel = std::map<std::string, Counts>;

void print_table(const Context& context, const ByKernel& kernels) {
  Table table({{"NAME"},
               {"HITS", Align::right},
               {"COMPILES", Align::right},
               {"FAILED", Align::right},
               {"FALLBACKS", Align::right},
               {"COMPILE", Align::right},
               {"LAST USED", Align::right}});
  const std::int64_t now_s = std::time(nullptr);
  for (const auto& [name, counts] : kernels) {
    table.add(
        {{printable(name)},
         {std::to_string(counts.hits)},
         {std::to_string(counts.compiles)},
         {std::to_string(counts.failed), counts.failed > 0 ? Colour::red : Colour::none},
         {std::to_string(counts.fallbacks), counts.fallbacks > 0 ? Colour::yellow : Colour::none},
         {counts.compiles > 0 ? milliseconds_text(static_cast<double>(counts.compile_ms)) : "-"},
         {age_text(now_s - counts.last_used_s)}});
  }
  table.print(context.out, context.colour);
}

void print_totals(const Context& context, const Counts& total, const Counts& specialized,
                  const Space& space) {
  Table totals({{}, {}});
  const auto line = [&](const char* label, const std::string& value) {
    totals.add({{label, Colour::dim}, {value}});
  };
  line("hit rate", fmt::format("{} ({} of {})", percent_text(hit_rate(specialized)),
                               specialized.hits, specialized.num_events()));
  line("compiles", fmt::format("{}, {}", total.compiles,
                               milliseconds_text(static_cast<double>(total.compile_ms))));
  line("cache", space_text(space, context.settings.cache_size_bytes));
  totals.print(context.out, context.colour);
}

}  // namespace

int stats(const Context& context, const std::string& name_part) {
  tell_layers(context);
  const jit::Layers layers = layers_of(context);
  const std::string folder = layers.options.read_write.value_or("");
  ByKernel kernels;
  Counts total, specialized;
  const auto usage = cache::UsageLog(layers.options).read();
  for (const cache::Usage& one : usage) {
    if (one.kernel.find(name_part) == std::string::npos) continue;
    kernels[one.kernel].add(one);
    total.add(one);
    if (!is_generic(one.kernel)) specialized.add(one);
  }
  const Space space = space_of(folder);
  if (context.json) {
    Json json = {{"kernels", Json::array()}, {"total", json_of(total)}};
    for (const auto& [name, counts] : kernels) {
      Json& row = json["kernels"].emplace_back(Json{{"name", name}});
      row.update(json_of(counts));
    }
    const auto rate = hit_rate(specialized);
    json["hit_rate"] = rate ? Json(*rate) : Json();
    json["cache"] = {{"folder", folder},
                     {"entries", space.num_entries},
                     {"bytes", space.bytes},
                     {"budget_bytes", context.settings.cache_size_bytes}};
    print_json(context.out, json);
    return ok;
  }
  if (kernels.empty()) {
    context.out << (folder.empty() ? "nothing recorded: there is no folder to write to\n"
                    : usage.empty()
                        ? fmt::format("nothing recorded in {}\n", printable(folder + "/.usage"))
                        : fmt::format("nothing recorded of \"{}\"\n", printable(name_part)));
  } else {
    print_table(context, kernels);
    context.out << '\n';
  }
  print_totals(context, total, specialized, space);
  return ok;
}

}  // namespace rlk::cli
