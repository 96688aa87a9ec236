// SPDX-License-Identifier: Apache-2.0
// `.usage` in the read-write folder: what kernels were asked for, over all processes. Best effort:
// where the folder is absent, refused or cannot be written, nothing is recorded and nothing said.
//
// Who appends holds a byte of the folder's lock, since a file that has grown too large is replaced
// by its sums: a line written in between would be lost. Machines that share a folder over a network
// have locks of their own, so there a line may be lost or spoilt.
#pragma once

#include "cache/disk_store.hpp"
#include "cache/usage.hpp"

#include <atomic>
#include <chrono>
#include <cstddef>
#include <memory>
#include <string>
#include <vector>

namespace rlk::cache {

inline constexpr const char* k_usage_name = ".usage";

struct UsageLimits {
  // A larger file is replaced by its sums, of half of that at most.
  std::size_t most_bytes = std::size_t{1} << 20;
  // A lock is held for microseconds: whoever waits for longer waits for a process that is stopped.
  std::chrono::milliseconds most_wait{250};
};

// Thread-safe. Nothing is touched on disk before the first call.
class UsageLog {
 public:
  explicit UsageLog(const StoreOptions& options, FileSystem& files = posix_file_system(),
                    UsageLimits limits = {});

  // Adds one line. The file is made if absent, the folder is not.
  void record(const Usage& usage) noexcept;

  // One sum a (kernel, event).
  std::vector<Usage> read() noexcept;

 private:
  bool is_folder_sound();
  bool may_use(OpenFile& file, FileStat& stat);
  std::unique_ptr<FileLock> take_lock();
  void append(const std::string& line);
  std::string read_text();
  void fold();

  std::string folder_;  // empty: there is none
  std::string path_;
  Sharing sharing_;
  std::vector<std::string> local_folders_;
  FileSystem& files_;
  UsageLimits limits_;
  std::atomic<bool> gave_up_ = false;
};

}  // namespace rlk::cache
