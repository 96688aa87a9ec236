// SPDX-License-Identifier: Apache-2.0
// The name of an entry's file: `<digest>.<compiler>.rlk`.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace rlk::cache {

// Bytes of the compiler's identity that a file name should not hold are written as %XX; an identity
// too long for a name is replaced by its own digest.
std::string entry_file_name(std::string_view digest, std::string_view compiler);

struct EntryFileName {
  std::string digest;
  std::string compiler;
};

// Nothing if the name is no entry's (temp files, strangers).
std::optional<EntryFileName> parse_entry_file_name(std::string_view name);

// Where a file of that name is written before it is renamed; another at each call.
std::string temp_file_name(std::string_view name);
bool is_temp_file_name(std::string_view name);

}  // namespace rlk::cache
