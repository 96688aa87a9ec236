// SPDX-License-Identifier: Apache-2.0
// rlk-jit show and rlk-jit path.
#include "cache/key.hpp"
#include "cli/commands.hpp"
#include "cli/query/cached_kernel.hpp"
#include "cli/text/table.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <utility>

namespace rlk::cli {
namespace {

// Reads the whole file, which a listing does not: "" if the checksum is right.
std::string check_whole(const Context& context, const CachedKernel& kernel) {
  const auto read = cache::DiskStore(layers_of(context).options).read(kernel.entry);
  return read.status == cache::ReadStatus::absent ? "vanished" : read.problem;
}

// As it was written, whatever fields it has; without what is nested very deep.
Json metadata_of(const CachedKernel& kernel) {
  constexpr int k_most_depth = 32;  // printing what is deeper would run out of stack
  const auto is_shown = [](int depth, Json::parse_event_t, Json&) { return depth <= k_most_depth; };
  Json metadata = Json::parse(kernel.entry.metadata, is_shown, false);
  return metadata.is_discarded() ? Json(kernel.entry.metadata) : metadata;
}

std::string value_text(const Json& value) {
  if (value.is_string()) return printable(value.get<std::string>());
  return printable(value.dump(-1, ' ', false, Json::error_handler_t::replace));
}

std::string field_text(const CachedKernel& kernel, const std::string& label, const Json& value) {
  if (label == "created" && value.is_number()) return time_text(kernel.metadata.created_s);
  if (label == "compile_ms" && kernel.metadata.stats.compile_ms >= 0) {
    return fmt::format("{:.1f}", kernel.metadata.stats.compile_ms);
  }
  if (label.ends_with("_bytes") && value.is_number_unsigned() && value >= 1024) {
    return fmt::format("{} ({})", value_text(value), bytes_text(value.get<std::uint64_t>()));
  }
  return value_text(value);
}

// Options and entries are many: each gets a line.
bool is_list_of_text(const Json& value) {
  return value.is_array() && !value.empty() &&
         std::ranges::all_of(value, [](const Json& one) { return one.is_string(); });
}

void print_section(const Context& context, const std::string& title, const Table& table) {
  context.out << painted(title, Colour::bold, context.colour) << '\n';
  table.print(context.out, context.colour);
}

void print_for_people(const Context& context, const CachedKernel& kernel,
                      const std::string& problem) {
  const cache::ListedEntry& entry = kernel.entry;
  Table file({{}, {}, {}});
  const auto line = [](Table& table, const std::string& label, const std::string& value,
                       Colour colour = Colour::none) {
    table.add({{""}, {label, Colour::dim}, {value, colour}});
  };
  line(file, "path", printable(entry.path));
  line(file, "layer", printable(layer_name(context, entry.layer)));
  line(file, "key", entry.digest);
  line(file, "compiler", printable(entry.compiler));
  line(file, "size", fmt::format("{} ({} bytes)", bytes_text(entry.file_bytes), entry.file_bytes));
  line(file, "payload",
       fmt::format("{} ({} bytes)", bytes_text(entry.payload_bytes), entry.payload_bytes));
  if (const auto cuda = driver_needed(kernel)) {
    line(file, "driver", fmt::format("CUDA {} or later", cuda_text(*cuda)));
  }
  line(file, "last used", time_text(entry.modified_s));
  line(file, "state", problem.empty() ? "sound" : printable(problem),
       problem.empty() ? Colour::green : Colour::red);
  print_section(context, shown_name(kernel), file);
  if (!entry.problem.empty()) return;

  Table metadata({{}, {}, {}});
  const Json parsed = metadata_of(kernel);
  if (parsed.is_object()) {
    for (const auto& [label, value] : parsed.items()) {
      std::string shown = printable(label);
      if (!is_list_of_text(value)) {
        line(metadata, shown, field_text(kernel, label, value));
        continue;
      }
      for (const Json& one : value) line(metadata, std::exchange(shown, ""), value_text(one));
    }
  } else {
    line(metadata, "text", value_text(parsed));
  }
  print_section(context, "metadata", metadata);

  Table key({{}, {}, {}});
  if (const auto fields = cache::decode_key(entry.key)) {
    for (const auto& field : *fields) line(key, printable(field.tag), printable(field.value));
  } else {
    line(key, "bytes", printable(entry.key));
  }
  print_section(context, "key", key);
}

Json whole_json(const Context& context, const CachedKernel& kernel, const std::string& problem) {
  const cache::ListedEntry& entry = kernel.entry;
  Json json = json_of(context, kernel);
  json["payload_bytes"] = entry.payload_bytes;
  const auto cuda = driver_needed(kernel);
  json["driver_needed"] = cuda ? Json(cuda_text(*cuda)) : Json();
  json["last_used"] = entry.modified_s;
  json["problem"] = or_null(problem);
  json["metadata"] = metadata_of(kernel);
  json["key_fields"] = Json::array();
  for (const auto& field : cache::decode_key(entry.key).value_or(std::vector<cache::KeyField>())) {
    json["key_fields"].push_back({{"tag", field.tag}, {"value", field.value}});
  }
  return json;
}

}  // namespace

int show(const Context& context, const std::string& word) {
  const auto kernel = find_kernel(context, word);
  if (!kernel) return failed;
  const std::string problem =
      kernel->entry.problem.empty() ? check_whole(context, *kernel) : kernel->entry.problem;
  if (context.json) {
    print_json(context.out, whole_json(context, *kernel, problem));
  } else {
    print_for_people(context, *kernel, problem);
  }
  return problem.empty() ? ok : failed;
}

int path(const Context& context, const std::string& word) {
  const auto print = [&](const std::string& found) {
    if (context.json) {
      print_json(context.out, {{"path", found}});
    } else {
      context.out << found << '\n';
    }
    return ok;
  };
  if (!word.empty()) {
    const auto kernel = find_kernel(context, word);
    if (!kernel) return failed;
    return print(kernel->entry.path);
  }
  const jit::Layers layers = layers_of(context);
  if (!has_read_write(context, layers)) return failed;
  return print(*layers.options.read_write);
}

}  // namespace rlk::cli
