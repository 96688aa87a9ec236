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

Json json_of(const Context& context, const CachedKernel& kernel) {
  Json json;
  json["name"] = kernel.name;
  json["target"] = kernel.target;
  json["compiler"] = kernel.entry.compiler;
  json["key"] = kernel.entry.digest;
  json["layer"] = layer_name(context, kernel.entry.layer);
  json["path"] = kernel.entry.path;
  json["file_bytes"] = kernel.entry.file_bytes;
  json["code_bytes"] = kernel.code_bytes ? Json(*kernel.code_bytes) : Json();
  json["compile_ms"] = kernel.compile_ms ? Json(*kernel.compile_ms) : Json();
  json["created"] = kernel.created_s;
  json["last_used"] = kernel.entry.modified_s;
  json["problem"] = kernel.entry.problem.empty() ? Json() : Json(kernel.entry.problem);
  return json;
}

std::vector<Cell> row_of(const Context& context, const CachedKernel& kernel, std::int64_t now_s) {
  const bool is_sound = kernel.entry.problem.empty();
  return {{shown_name(kernel), is_sound ? Colour::none : Colour::red},
          {printable(kernel.target)},
          {printable(kernel.entry.compiler)},
          {printable(layer_name(context, kernel.entry.layer)), Colour::dim},
          {bytes_text(kernel.entry.file_bytes)},
          {kernel.code_bytes ? bytes_text(*kernel.code_bytes) : "-"},
          {age_text(now_s - kernel.created_s)},
          {kernel.compile_ms ? milliseconds_text(*kernel.compile_ms) : "-"},
          {kernel.entry.digest.substr(0, k_shown_key_digits), Colour::dim}};
}

}  // namespace

int list(const Context& context, const ListFilter& filter) {
  tell_layers(context);
  const std::vector<CachedKernel> kernels = all_kernels(context, filter);
  if (context.json) {
    std::vector<std::string> lines(kernels.size());
    for_each_entry(kernels.size(),
                   [&](std::size_t i) { lines[i] = line_of(json_of(context, kernels[i])); });
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
