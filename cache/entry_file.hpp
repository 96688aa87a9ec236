// SPDX-License-Identifier: Apache-2.0
// One entry file: its name, how it is read without trusting what is found there, how it is
// published.
#pragma once

#include "cache/entry.hpp"
#include "cache/file_system.hpp"
#include "cache/trust.hpp"

#include <optional>
#include <string>
#include <string_view>

namespace rlk::cache {

// `<digest>.<compiler>.rlk`. Bytes of the compiler's identity that a file name should not hold are
// written as %XX; one too long for a name is replaced by its own digest.
std::string entry_file_name(std::string_view digest, std::string_view compiler);

struct EntryFileName {
  std::string digest;
  std::string compiler;
};

// Nothing if the name is no entry's (temp files, strangers).
std::optional<EntryFileName> parse_entry_file_name(std::string_view name);

enum class ReadStatus { ok, absent, damaged, refused, io_error };

struct EntryRead {
  ReadStatus status = ReadStatus::io_error;
  std::string problem;  // in words, unless ok
  Entry entry;
  FileStat stat;
};

struct HeaderRead {
  ReadStatus status = ReadStatus::io_error;
  std::string problem;
  EntrySizes sizes;
  std::string key;
  std::string metadata;
  FileStat stat;
};

// How a file is looked at: one of the read-write layer must be ours and no link; one of a read-only
// layer is trusted like the folder.
enum class Checks { owner, none };

// Never hangs on a FIFO, never follows a link under Checks::owner, asks anew on EINTR and ESTALE a
// few times. Sets the modification time to now if `touch_older_than_s` is given and the file is
// older.
EntryRead read_entry(FileSystem& files, const std::string& path, Checks checks, Sharing sharing,
                     std::optional<std::int64_t> touch_older_than_s = std::nullopt);

// Header, key and metadata alone. The checksum is not verified.
HeaderRead read_header(FileSystem& files, const std::string& path, Checks checks, Sharing sharing);

// Writes a private file in `folder`, syncs it, renames it to `name`, syncs the folder. 0 or the
// errno of the step that failed, in which case nothing of it is visible under `name`.
[[nodiscard]] int publish(FileSystem& files, const std::string& folder, const std::string& name,
                          std::string_view bytes, Sharing sharing);

// Makes the folder and its parents. 0 or an errno; a folder that is there already is left as it is.
[[nodiscard]] int make_folder(FileSystem& files, const std::string& folder, Sharing sharing);

}  // namespace rlk::cache
