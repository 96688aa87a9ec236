// SPDX-License-Identifier: Apache-2.0
// What a cache entry tells of its kernel, and its JSON in both directions; docs/cache-format.md has
// the fields.
#pragma once

#include "jit/compiler.hpp"
#include "jit/specialization.hpp"

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace rlk::jit {

// A number that nobody told is negative and is left out of the JSON.
struct EntryMetadata {
  std::string name;  // of the Specialization
  std::string target;
  bool generic = false;
  std::string compiler;
  std::int64_t created_s = -1;
  CompileStats stats{.compile_ms = -1};
  std::int64_t dynamic_shared_bytes = -1;  // that a launch asks for
  std::vector<std::string> options, entries;
  std::vector<NamedConstant> constants;
};

std::string to_json(const EntryMetadata& metadata);

// Nothing where the text is no JSON object. Fields that are unknown, or of another type, are passed
// over.
std::optional<EntryMetadata> metadata_from_json(std::string_view json);

// What a listing shows: no more is read than that, of a text that may be anything.
EntryMetadata listed_metadata(std::string_view json);

// The JSON of a kernel that has just been compiled.
std::string metadata(const Specialization& spec, const CompileRequest& request,
                     const CompileStats& stats, const std::string& compiler);

// The same JSON without when and for how long it was compiled: an entry is then a function of its
// file's name alone.
std::string without_times(const std::string& metadata);

// Who made an entry, by its metadata; "an unknown compiler" where they do not tell.
std::string compiler_named(const std::string& metadata);

}  // namespace rlk::jit
