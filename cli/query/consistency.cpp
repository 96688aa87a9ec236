// SPDX-License-Identifier: Apache-2.0
// Compares an entry's metadata with its key and its file's name.
#include "cli/query/consistency.hpp"

#include "cache/entry_name.hpp"
#include "cache/key.hpp"
#include "jit/metadata.hpp"

#include <fmt/format.h>

namespace rlk::cli {
namespace {

std::string mismatch(const char* field, const std::string& expected, const std::string& got) {
  return fmt::format("metadata: {}: expected \"{}\", got \"{}\"", field, expected, got);
}

}  // namespace

std::string inconsistency(const std::string& file_name, const cache::Entry& entry) {
  const auto metadata = jit::metadata_from_json(entry.metadata);
  if (!metadata) return "metadata: expected a JSON object, got something else";
  const auto fields = cache::decode_key(entry.key);
  if (!fields) return "key: expected tagged fields, got something else";
  for (const auto& [tag, value] : *fields) {
    if (tag == "specialization" && metadata->name != value) {
      return mismatch("name", value, metadata->name);
    }
    if (tag == "target" && metadata->target != value) {
      return mismatch("target", value, metadata->target);
    }
  }
  const auto parsed = cache::parse_entry_file_name(file_name);
  if (!parsed || cache::entry_file_name(parsed->digest, metadata->compiler) != file_name) {
    return mismatch("compiler", parsed ? parsed->compiler : "", metadata->compiler);
  }
  return {};
}

}  // namespace rlk::cli
