// SPDX-License-Identifier: Apache-2.0
// Opens without waiting, looks at what it is, then reads.
#include "cache/files/text_file.hpp"

#include "cache/files/open_file.hpp"

#include <fcntl.h>
#include <fmt/format.h>

#include <cerrno>

namespace rlk::cache {

TextRead read_text_file(FileSystem& files, const std::string& path, std::uint64_t most_bytes) {
  TextRead read;
  OpenFile file(files, path, O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
  const auto stat = file.error() == 0 ? files.stat_open(file.number()) : Outcome<FileStat>{};
  const int error = file.error() != 0 ? file.error() : stat.error;
  if (error != 0) {
    // With a file in the folder's place there is none either; the store tells of that.
    read.is_absent = error == ENOENT || error == ENOTDIR;
    if (!read.is_absent) read.problem = error_text(error);
  } else if (stat.value.kind != FileKind::regular) {
    read.problem = "expected a regular file, got something else";
  } else if (stat.value.size_bytes > most_bytes) {
    read.problem =
        fmt::format("expected at most {} bytes, got {}", most_bytes, stat.value.size_bytes);
  } else {
    read.text.resize(stat.value.size_bytes);
    const auto count = file.read(read.text.data(), read.text.size());
    read.text.resize(count.value);
    if (!count) read.problem = error_text(count.error);
  }
  return read;
}

}  // namespace rlk::cache
