// SPDX-License-Identifier: Apache-2.0
// rlk-jit list.
#include "cli/commands.hpp"
#include "cli/kernel.hpp"
#include "cli/table.hpp"

#include <fmt/format.h>

#include <ctime>

namespace rlk::cli {
namespace {

// Enough of a key to name it in a cache of millions.
constexpr std::size_t k_shown_key_digits = 12;

Json json_of(const Context& context, const Kernel& kernel) {
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

std::vector<Cell> row_of(const Context& context, const Kernel& kernel, std::int64_t now_s) {
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

int list(const Context& context) {
  const std::vector<Kernel> kernels = all_kernels(context);
  if (context.json) {
    Json all = Json::array();
    for (const Kernel& kernel : kernels) all.push_back(json_of(context, kernel));
    print_json(context.out, all);
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
  for (const Kernel& kernel : kernels) {
    table.add(row_of(context, kernel, now_s));
    num_bytes += kernel.entry.file_bytes;
  }
  table.print(context.out, context.colour);
  if (context.summary) {
    context.out << painted(fmt::format("{} entries, {}", kernels.size(), bytes_text(num_bytes)),
                           Colour::dim, context.colour)
                << '\n';
  }
  return ok;
}

}  // namespace rlk::cli
