// SPDX-License-Identifier: Apache-2.0
// Compares an entry's metadata with its key and its file's name.
#include "cli/query/consistency.hpp"

#include "cache/entry_name.hpp"
#include "cache/key.hpp"
#include "cli/query/cached_kernel.hpp"

#include <fmt/format.h>

namespace rlk::cli {
namespace {

std::string text_at(const Json& metadata, const char* field) {
  const auto found = metadata.find(field);
  return found != metadata.end() && found->is_string() ? found->get<std::string>() : "";
}

std::string mismatch(const char* field, const std::string& expected, const std::string& got) {
  return fmt::format("metadata: {}: expected \"{}\", got \"{}\"", field, expected, got);
}

}  // namespace

std::string inconsistency(const std::string& file_name, const cache::Entry& entry) {
  const Json metadata = Json::parse(entry.metadata, nullptr, false);
  if (!metadata.is_object()) return "metadata: expected a JSON object, got something else";
  const auto fields = cache::decode_key(entry.key);
  if (!fields) return "key: expected tagged fields, got something else";
  for (const auto& [tag, value] : *fields) {
    const char* field = tag == "specialization" ? "name" : tag == "target" ? "target" : nullptr;
    if (field == nullptr) continue;
    if (const std::string got = text_at(metadata, field); got != value) {
      return mismatch(field, value, got);
    }
  }
  const std::string compiler = text_at(metadata, "compiler");
  const auto parsed = cache::parse_entry_file_name(file_name);
  if (!parsed || cache::entry_file_name(parsed->digest, compiler) != file_name) {
    return mismatch("compiler", parsed ? parsed->compiler : "", compiler);
  }
  return {};
}

}  // namespace rlk::cli
