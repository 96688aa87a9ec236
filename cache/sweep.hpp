// SPDX-License-Identifier: Apache-2.0
// Removes what a cache folder need not keep: entries over a budget, the least recently used first,
// and what killed writers left. An entry that is being read goes on: its bytes live until closed.
#pragma once

#include "cache/files/file_system.hpp"
#include "cache/files/trust.hpp"

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <vector>

namespace rlk::cache {

struct SweepLimits {
  // Where the entries take more than `most_bytes`, they are removed until `down_to_bytes` are left.
  std::uint64_t most_bytes = std::numeric_limits<std::uint64_t>::max();
  std::uint64_t down_to_bytes = most_bytes;
  std::optional<std::int64_t> most_idle_s = {};  // entries that were not used for longer go
  bool even_if_used = false;  // also those that were used since the folder was listed
  bool dry_run = false;       // nothing is removed, all is told as if
};

struct Swept {
  std::uint64_t num_entries = 0, bytes = 0;  // that are left
  std::uint64_t num_removed = 0, removed_bytes = 0;
  std::vector<std::string> removed;    // paths of these entries
  std::vector<std::string> leftovers;  // paths of what killed writers left: removed too
  std::string problem;  // the first one, if any; what could be removed nevertheless was
};

Swept sweep(FileSystem& files, const std::string& folder, const SweepLimits& limits);

// Whether an hour has passed since the last sweep, whose time is that of the file `.swept`.
bool is_sweep_due(FileSystem& files, const std::string& folder);

// Asks that again and sets the time to now. True: the caller sweeps.
Outcome<bool> claim_sweep(FileSystem& files, const std::string& folder, Sharing sharing);

}  // namespace rlk::cache
