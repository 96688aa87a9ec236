// SPDX-License-Identifier: Apache-2.0
// What an entry's checksum does not tell: whether its parts fit each other and the file's name.
#pragma once

#include "cache/entry.hpp"

#include <string>

namespace rlk::cli {

// "" or what does not fit. That the name has the key's digest is asked elsewhere.
std::string inconsistency(const std::string& file_name, const cache::Entry& entry);

}  // namespace rlk::cli
