// SPDX-License-Identifier: Apache-2.0
// An open file that closes itself, with calls that go on after EINTR and short counts.
#pragma once

#include "cache/files/file_system.hpp"

#include <cerrno>
#include <string>
#include <utility>

namespace rlk::cache {

// Calls again after EINTR: bounded, so that a file system that only ever interrupts gives an error.
template <class Call>
auto uninterrupted(Call&& call) {
  auto outcome = call();
  for (int i = 0; i < 16 && outcome.error == EINTR; ++i) outcome = call();
  return outcome;
}

class OpenFile {
 public:
  OpenFile(FileSystem& files, const std::string& path, int flags, mode_t mode = 0)
      : files_(files), opened_(uninterrupted([&] { return files.open(path, flags, mode); })) {}
  OpenFile(const OpenFile&) = delete;
  OpenFile& operator=(const OpenFile&) = delete;
  ~OpenFile() { close(); }

  int error() const { return opened_.error; }  // of the open
  int number() const { return opened_.value; }

  // Reads until `num_bytes` are there or the file ends; the count says which.
  Outcome<std::size_t> read(void* to, std::size_t num_bytes) {
    auto* bytes = static_cast<char*>(to);
    std::size_t num_read = 0;
    while (num_read < num_bytes) {
      const auto step = uninterrupted(
          [&] { return files_.read(number(), bytes + num_read, num_bytes - num_read); });
      if (!step) return step;
      if (step.value == 0) break;
      num_read += step.value;
    }
    return {num_read};
  }

  int write(const void* from, std::size_t num_bytes) {
    const auto* bytes = static_cast<const char*>(from);
    for (std::size_t num_written = 0; num_written < num_bytes;) {
      const auto step = uninterrupted(
          [&] { return files_.write(number(), bytes + num_written, num_bytes - num_written); });
      if (!step) return step.error;
      if (step.value == 0) return EIO;
      num_written += step.value;
    }
    return 0;
  }

  int fsync() {
    const int error = uninterrupted([&] { return Outcome<int>{0, files_.fsync(number())}; }).error;
    // Some file systems (FUSE, pipes in tests) cannot sync; they have nothing better to offer.
    return error == EINVAL || error == ENOSYS || error == ENOTSUP ? 0 : error;
  }

  // Never tried again: after EINTR the number is free and may belong to another thread's file.
  int close() {
    if (opened_.error != 0) return 0;
    opened_.error = EBADF;
    const int error = files_.close(opened_.value);
    return error == EINTR ? 0 : error;
  }

 private:
  FileSystem& files_;
  Outcome<int> opened_;
};

}  // namespace rlk::cache
