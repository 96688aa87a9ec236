// SPDX-License-Identifier: Apache-2.0
// Reads and publishes entry files.
#include "cache/entry_file.hpp"

#include "cache/entry_name.hpp"
#include "cache/files/new_file.hpp"
#include "cache/files/open_file.hpp"

#include <fcntl.h>
#include <fmt/format.h>

#include <algorithm>
#include <ctime>

namespace rlk::cache {
namespace {

constexpr int k_most_tries = 4;  // after ESTALE: the file was replaced on another node

void fail(ReadResult& result, std::string_view what, int error) {
  result.status = ReadStatus::io_error;
  result.error = error;
  result.problem = fmt::format("{}: {}", what, error_text(error));
}

void fail(ReadResult& result, ReadStatus status, std::string problem) {
  result.status = status;
  result.problem = std::move(problem);
}

// The steps that whole file and header share: opened, looked at, its sizes read. False: see
// `result`.
bool open_checked(OpenFile& file, FileSystem& files, const std::string& path,
                  const ReadRules& rules, ReadResult& result) {
  if (file.error() == ENOENT || file.error() == ENOTDIR) {
    result.status = ReadStatus::absent;
    return false;
  }
  if (file.error() != 0) {
    result.stat = files.stat(path, Links::keep).value;  // lists have its size and age all the same
    // O_NOFOLLOW met a symbolic link; a socket, or a device without a driver.
    if (file.error() == ELOOP || file.error() == ENXIO || file.error() == ENODEV) {
      fail(result, ReadStatus::refused, "expected a regular file, got something else");
    } else {
      fail(result, "open", file.error());
    }
    return false;
  }
  const auto stat = files.stat_open(file.number());
  if (!stat) {
    fail(result, "stat", stat.error);
    return false;
  }
  result.stat = stat.value;
  if (stat.value.kind != FileKind::regular) {
    fail(result, ReadStatus::refused, "expected a regular file, got something else");
    return false;
  }
  if (rules.identity) {
    if (std::string problem = trust_problem(path, stat.value, rules.sharing, *rules.identity);
        !problem.empty()) {
      fail(result, ReadStatus::refused, std::move(problem));
      return false;
    }
  }
  return true;
}

// O_NONBLOCK: opening a FIFO for reading would else wait for a writer.
int open_flags(const ReadRules& rules) {
  return O_RDONLY | O_NONBLOCK | O_NOCTTY | (rules.identity ? O_NOFOLLOW : 0);
}

// Appends `num_bytes` of the file to `bytes`.
bool read_more(OpenFile& file, std::string& bytes, std::size_t num_bytes, ReadResult& result) {
  const std::size_t before = bytes.size();
  bytes.resize(before + num_bytes);
  const auto num_read = file.read(bytes.data() + before, num_bytes);
  if (!num_read) {
    fail(result, "read", num_read.error);
    return false;
  }
  bytes.resize(before + num_read.value);
  return true;
}

std::span<const std::byte> as_bytes(const std::string& text) {
  return std::as_bytes(std::span(text));
}

// Reads the front of the file into `bytes`, in most files with key and metadata, and decodes its
// sizes; nothing larger is allocated before they agree.
std::optional<EntrySizes> read_sizes(OpenFile& file, std::string& bytes, ReadResult& result) {
  constexpr std::uint64_t k_front_bytes = 4096;
  const auto num_bytes =
      std::clamp<std::uint64_t>(result.stat.size_bytes, entry_head_bytes, k_front_bytes);
  if (!read_more(file, bytes, num_bytes, result)) return std::nullopt;
  auto sizes = decode_sizes(as_bytes(bytes), result.stat.size_bytes);
  if (!sizes.value) fail(result, ReadStatus::damaged, std::move(sizes.problem));
  return sizes.value;
}

// Reads on until `bytes` has the file's first `num_bytes`, or the file ends.
bool read_up_to(OpenFile& file, std::string& bytes, std::size_t num_bytes, ReadResult& result) {
  return bytes.size() >= num_bytes || read_more(file, bytes, num_bytes - bytes.size(), result);
}

EntryRead read_entry_once(FileSystem& files, const std::string& path, const ReadRules& rules) {
  EntryRead result;
  OpenFile file(files, path, open_flags(rules));
  if (!open_checked(file, files, path, rules, result)) return result;
  std::string bytes;
  const auto sizes = read_sizes(file, bytes, result);
  if (!sizes || !read_up_to(file, bytes, sizes->file_bytes(), result)) return result;
  auto decoded = decode_entry(as_bytes(bytes));
  if (!decoded.value) {
    fail(result, ReadStatus::damaged, std::move(decoded.problem));
    return result;
  }
  result.status = ReadStatus::ok;
  result.entry = std::move(*decoded.value);
  if (rules.touch_after_s && std::time(nullptr) - result.stat.modified_s > *rules.touch_after_s) {
    files.touch(file.number());  // a lost stamp costs nothing but recency
  }
  return result;
}

HeaderRead read_header_once(FileSystem& files, const std::string& path, const ReadRules& rules) {
  HeaderRead result;
  OpenFile file(files, path, open_flags(rules));
  if (!open_checked(file, files, path, rules, result)) return result;
  std::string bytes;
  const auto sizes = read_sizes(file, bytes, result);
  if (!sizes) return result;
  const std::size_t num_bytes = entry_head_bytes + sizes->key_bytes + sizes->metadata_bytes;
  if (!read_up_to(file, bytes, num_bytes, result)) return result;
  if (bytes.size() < num_bytes) {
    fail(result, ReadStatus::damaged, "shorter than its sizes say");
    return result;
  }
  result.status = ReadStatus::ok;
  result.sizes = *sizes;
  result.key = bytes.substr(entry_head_bytes, sizes->key_bytes);
  result.metadata = bytes.substr(entry_head_bytes + sizes->key_bytes, sizes->metadata_bytes);
  return result;
}

int publish_once(FileSystem& files, const std::string& folder, const std::string& name,
                 std::string_view bytes, Sharing sharing) {
  NewFile file(files, folder + '/' + temp_file_name(name), entry_mode(sharing));
  file.write(bytes);
  return file.publish(folder + '/' + name);
}

}  // namespace

EntryRead read_entry(FileSystem& files, const std::string& path, const ReadRules& rules) {
  EntryRead result = read_entry_once(files, path, rules);
  for (int i = 1; i < k_most_tries && result.error == ESTALE; ++i) {
    result = read_entry_once(files, path, rules);
  }
  return result;
}

HeaderRead read_header(FileSystem& files, const std::string& path, const ReadRules& rules) {
  HeaderRead result = read_header_once(files, path, rules);
  for (int i = 1; i < k_most_tries && result.error == ESTALE; ++i) {
    result = read_header_once(files, path, rules);
  }
  return result;
}

int publish(FileSystem& files, const std::string& folder, const std::string& name,
            std::string_view bytes, Sharing sharing) {
  int error = publish_once(files, folder, name, bytes, sharing);
  // EEXIST: the temp name was taken.
  for (int i = 1; i < k_most_tries && (error == ESTALE || error == EEXIST); ++i) {
    error = publish_once(files, folder, name, bytes, sharing);
  }
  return error;
}

}  // namespace rlk::cache
