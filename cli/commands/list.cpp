// SPDX-License-Identifier: Apache-2.0
// rlk-jit list.
#include "cli/commands.hpp"
#include "cli/query/cached_kernel.hpp"
#include "cli/query/for_each.hpp"
#include "cli/text/table.hpp"

#include <fmt/format.h>

#include <ctime>

namespace rlk::cli {
namespace {

Json row_json(const Context& context, const CachedKernel& kernel) {
  Json json = json_of(context, kernel);
  json["code_bytes"] = or_null(kernel.metadata.stats.code_bytes);
  json["compile_ms"] = or_null(kernel.metadata.stats.compile_ms);
  json["created"] = kernel.metadata.created_s;
  json["last_used"] = kernel.entry.modified_s;
  json["problem"] = or_null(kernel.entry.problem);
  return json;
}

std::vector<Cell> row_of(const Context& context, const CachedKernel& kernel, std::int64_t now_s) {
  const bool is_sound = kernel.entry.problem.empty();
  const jit::CompileStats& stats = kernel.metadata.stats;
  return {{shown_name(kernel), is_sound ? Colour::none : Colour::red},
          {printable(kernel.metadata.target)},
          {printable(kernel.entry.compiler)},
          {printable(layer_name(context, kernel.entry.layer)), Colour::dim},
          {bytes_text(kernel.entry.file_bytes)},
          {stats.code_bytes < 0 ? "-" : bytes_text(static_cast<std::uint64_t>(stats.code_bytes))},
          {age_text(now_s - kernel.metadata.created_s)},
          {stats.compile_ms < 0 ? "-" : milliseconds_text(stats.compile_ms)},
          {kernel.entry.digest.substr(0, k_shown_key_digits), Colour::dim}};
}

}  // namespace

int list(const Context& context, const ListFilter& filter) {
  tell_layers(context);
  const std::vector<CachedKernel> kernels = all_kernels(context, filter);
  if (context.json) {
    std::vector<std::string> lines(kernels.size());
    for_each_entry(kernels.size(),
                   [&](std::size_t i) { lines[i] = line_of(row_json(context, kernels[i])); });
    print_json_lines(context.out, lines);
    return ok;
  }
  Table table({{"NAME"},
               {"TARGET"},
               {"COMPILER"},
               {"LAYER"},
               {"SIZE", Align::right},
               {"CODE", Align::right},
               {"AGE", Align::right},
               {"COMPILE", Align::right},
               {"KEY"}});
  const std::int64_t now_s = std::time(nullptr);
  std::uint64_t num_bytes = 0;
  for (const CachedKernel& kernel : kernels) num_bytes += kernel.entry.file_bytes;
  std::vector<std::vector<Cell>> rows(kernels.size());
  for_each_entry(rows.size(), [&](std::size_t i) { rows[i] = row_of(context, kernels[i], now_s); });
  for (auto& row : rows) table.add(std::move(row));
  table.print(context.out, context.colour);
  if (context.summary) {
    context.out << painted(
                       fmt::format("{}, {}", entries_text(kernels.size()), bytes_text(num_bytes)),
                       Colour::dim, context.colour)
                << '\n';
  }
  return ok;
}

}  // namespace rlk::cli
