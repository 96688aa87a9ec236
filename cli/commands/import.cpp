// SPDX-License-Identifier: Apache-2.0
// rlk-jit import.
#include "cache/import_pack.hpp"
#include "cli/commands.hpp"
#include "cli/query/cached_kernel.hpp"
#include "cli/query/consistency.hpp"
#include "cli/text/text.hpp"
#include "runtime/error.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>

namespace rlk::cli {
namespace {

// In lower case; nothing if it is no SHA-256.
std::optional<std::string> parse_sha256(std::string text) {
  constexpr std::size_t k_num_digits = 64;
  std::ranges::transform(text, text.begin(),
                         [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  const bool is_hex = text.find_first_not_of("0123456789abcdef") == std::string::npos;
  return is_hex && text.size() == k_num_digits ? std::optional(text) : std::nullopt;
}

void print(const Context& context, const cache::Imported& done, const std::string& folder) {
  if (!context.json) {
    context.out << fmt::format(
        "{} stored, {} present{}: {}\n", done.num_stored, done.num_present,
        done.num_failed == 0 ? "" : fmt::format(", {} could not be stored", done.num_failed),
        printable(folder));
    return;
  }
  Json json;
  json["folder"] = folder;
  json["sha256"] = done.sha256;
  json["entries"] = done.num_entries;
  json["stored"] = done.num_stored;
  json["present"] = done.num_present;
  json["failed"] = done.num_failed;
  print_json(context.out, json);
}

}  // namespace

int import_pack(const Context& context, const ImportCommand& asked) {
  cache::PackToImport pack{.path = asked.pack, .sha256 = {}, .judge = {}, .kept = {}};
  if (asked.sha256) {
    pack.sha256 = parse_sha256(*asked.sha256);
    if (!pack.sha256) {
      throw InvalidArgument("--sha256: expected 64 hex digits, got \"{}\"", *asked.sha256);
    }
  }
  const jit::Layers layers = layers_of(context);
  if (!has_read_write(context, layers)) return failed;
  std::vector<std::string> listed;
  pack.judge = [](const cache::PackMember& member) {
    return inconsistency(member.name, member.entry);
  };
  pack.kept = [&](const cache::PackMember& member) {
    const auto metadata = jit::metadata_from_json(member.entry.metadata);
    const bool is_named = metadata && !metadata->name.empty();
    if (member.is_listed && is_named) listed.push_back(metadata->name);
  };
  const cache::Imported done = cache::import_pack(layers.options, pack);
  if (!done.problem.empty()) {
    return tell(context, fmt::format("{}: not imported: {}", asked.pack, done.problem));
  }
  print(context, done, *layers.options.read_write);
  const int noted = list_in_manifest(context, layers.options, listed, done.num_stored != 0);
  return done.num_failed == 0 ? noted : failed;
}

}  // namespace rlk::cli
