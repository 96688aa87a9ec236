// SPDX-License-Identifier: Apache-2.0
// A kernel-held lock on one byte of a lock file. It ends with this object or with the process,
// however that ends; a child that the process forks does not keep it.
//
// One file serves all keys: each has a byte of its own, so that no two keys wait for each other as
// they would over a bounded number of whole-file locks. The file stays empty and is never removed:
// two processes could else each hold the lock of a file of that name.
#pragma once

#include "cache/files/file_system.hpp"
#include "cache/files/open_file.hpp"
#include "cache/files/trust.hpp"

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace rlk::cache {

// Whoever sweeps the folder has this byte.
inline constexpr std::uint64_t k_sweep_byte = 0;
// Whoever writes to `.usage` has this one, above those of keys.
inline constexpr std::uint64_t k_usage_byte = (std::uint64_t{1} << 60) + 1;
// Whoever writes a manifest.
inline constexpr std::uint64_t k_manifest_byte = k_usage_byte + 1;
// Whoever writes the choices of tiles.
inline constexpr std::uint64_t k_tuning_byte = k_manifest_byte + 1;

// The byte of a key, from its digest in hex; none of the above.
std::uint64_t byte_of_key(std::string_view digest);

class FileLock {
 public:
  // Opens the file, which is made if absent. Holds nothing yet.
  FileLock(FileSystem& files, const std::string& path, Sharing sharing, std::uint64_t byte);
  FileLock(const FileLock&) = delete;
  FileLock& operator=(const FileLock&) = delete;
  ~FileLock();

  int error() const { return error_; }  // of the open

  // 0: held from now on. EAGAIN: another process or thread has it. Else it cannot be had.
  [[nodiscard]] int try_lock();

  // In a forked child: closes its copy of the file, which would else hold the parent's lock.
  void abandon();

 private:
  FileSystem& files_;
  std::uint64_t byte_;
  std::optional<OpenFile> file_;
  int error_ = 0;
  bool is_held_ = false;
};

}  // namespace rlk::cache
