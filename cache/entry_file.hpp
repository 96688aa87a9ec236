// SPDX-License-Identifier: Apache-2.0
// One entry file: how it is read without trusting what lies there, and how it is published.
#pragma once

#include "cache/entry.hpp"
#include "cache/files/file_system.hpp"
#include "cache/files/trust.hpp"

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace rlk::cache {

enum class ReadStatus { ok, absent, damaged, refused, io_error };

// What is the same for the whole file and for its header: how the reading ended.
struct ReadResult {
  ReadStatus status = ReadStatus::io_error;
  std::string problem;  // in words, unless ok or absent
  int error = 0;        // errno of an io_error
  FileStat stat;
};

struct EntryRead : ReadResult {
  Entry entry;
};

struct HeaderRead : ReadResult {
  EntrySizes sizes;
  std::string key;
  std::string metadata;
};

// How a file is looked at: one of the read-write layer must be ours (group's) and no symbolic link;
// one of a read-only layer is trusted as its folder is.
struct ReadRules {
  std::optional<Identity> identity;  // who we are; nothing: the file is trusted
  Sharing sharing = Sharing::owner;
  std::optional<std::int64_t> touch_after_s;  // an older file's modification time becomes now
};

// Never hangs on a FIFO; asks anew a few times on EINTR and ESTALE.
EntryRead read_entry(FileSystem& files, const std::string& path, const ReadRules& rules);

// Header, key and metadata alone. The checksum is not verified.
HeaderRead read_header(FileSystem& files, const std::string& path, const ReadRules& rules);

// Writes a private file in `folder`, syncs it, renames it to `name`, syncs the folder. 0 or the
// errno of the step that failed: then nothing of it is visible under `name`.
[[nodiscard]] int publish(FileSystem& files, const std::string& folder, const std::string& name,
                          std::string_view bytes, Sharing sharing);

}  // namespace rlk::cache
