// SPDX-License-Identifier: Apache-2.0
// A cache entry with its metadata parsed: what list, show and path are about.
#pragma once

#include "cli/context.hpp"

#include <nlohmann/json.hpp>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace rlk::cli {

// Ordered: metadata is shown in the order in which it was written.
using Json = nlohmann::ordered_json;

struct Kernel {
  cache::ListedEntry entry;
  std::string name;  // empty if the metadata does not tell
  std::string target;
  std::optional<double> compile_ms;
  std::optional<std::uint64_t> code_bytes;
  std::int64_t created_s = 0;
};

Kernel kernel_of(cache::ListedEntry entry);

// All entries of all layers, in the order of layers, then of names.
std::vector<Kernel> all_kernels(const Context& context);

// The one that the word means: a name, the front of a key or of `<key>.<compiler>`, or a part of a
// name. Nothing after telling the context's err that there is none, or which ones there are.
std::optional<Kernel> find_kernel(const Context& context, const std::string& word);

// What is wrong with the entry, in parentheses, where it has no name to show.
std::string shown_name(const Kernel& kernel);

// For --json. Bytes that are no UTF-8 become U+FFFD.
void print_json(std::ostream& out, const Json& json);

}  // namespace rlk::cli
