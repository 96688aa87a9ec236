// SPDX-License-Identifier: Apache-2.0
// The subcommands. Each prints to the context's streams and returns the exit code.
#pragma once

#include "cli/context.hpp"

#include <string>

namespace rlk::cli {

// Every entry of every layer: a table, or an array of objects.
int list(const Context& context);

// All that is known of one entry: file, metadata, decoded key, whether its checksum is right.
int show(const Context& context, const std::string& word);

// The read-write folder, or the file of an entry.
int path(const Context& context, const std::string& word);

// Whether rlk would work here, and how. `failed` if something is broken.
int doctor(const Context& context);

}  // namespace rlk::cli
