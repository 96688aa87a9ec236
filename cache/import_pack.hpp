// SPDX-License-Identifier: Apache-2.0
// Stores what a pack holds into the read-write folder, after the whole of it was verified.
#pragma once

#include "cache/disk_store.hpp"
#include "cache/pack.hpp"

#include <functional>
#include <optional>
#include <string>

namespace rlk::cache {

struct PackToImport {
  std::string path;
  std::optional<std::string>
      sha256;        // what the file must have, in lower case; from a trusted place
  TakeMember judge;  // what else an entry must be: "" or why the pack is refused
  std::function<void(const PackMember& member)> kept;  // stored, or there already
};

struct Imported {
  std::string problem;  // why the pack is refused; nothing was stored, unless it changed meanwhile
  std::string sha256;
  std::uint64_t num_entries = 0;
  std::uint64_t num_stored = 0;
  std::uint64_t num_present = 0;  // that were there with the same bytes
  std::uint64_t num_failed = 0;   // that could not be stored; the log says why
};

// Reads the file twice: to verify it whole, then to store. Who changes it in between is found out
// before the changed entry is stored.
Imported import_pack(const StoreOptions& store, const PackToImport& pack,
                     FileSystem& files = posix_file_system());

}  // namespace rlk::cache
