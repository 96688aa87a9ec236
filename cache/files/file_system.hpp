// SPDX-License-Identifier: Apache-2.0
// The one seam between the cache and the disk. Errors are errno values, never exceptions: what an
// error means (a miss, damage, read-only) is decided above. Thread-safe.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace rlk::cache {

// A value, or the errno of the call that did not give one.
template <class T>
struct Outcome {
  T value{};
  int error = 0;

  explicit operator bool() const { return error == 0; }
};

enum class FileKind { regular, folder, symlink, other };

struct FileStat {
  FileKind kind = FileKind::other;
  std::uint64_t size_bytes = 0;
  mode_t mode = 0;  // permission bits only
  uid_t owner = 0;
  gid_t group = 0;
  std::int64_t modified_s = 0;  // since 1970, with the part below a second beside it
  std::int64_t modified_ns = 0;
};

enum class Links { follow, keep };

// Each call is the system call of its name; an int result is 0 or an errno.
class FileSystem {
 public:
  virtual ~FileSystem() = default;

  virtual Outcome<int> open(const std::string& path, int flags, mode_t mode = 0) = 0;
  virtual Outcome<std::size_t> read(int file, void* to, std::size_t num_bytes) = 0;
  virtual Outcome<std::size_t> write(int file, const void* from, std::size_t num_bytes) = 0;
  virtual Outcome<FileStat> stat_open(int file) = 0;
  [[nodiscard]] virtual int chmod_open(int file, mode_t mode) = 0;
  [[nodiscard]] virtual int fsync(int file) = 0;
  virtual int touch(int file) = 0;  // modification time = now
  virtual int close(int file) = 0;

  // A lock of the open file on one byte (F_OFD_SETLK): the kernel drops it with the file's last
  // copy, however the process ends. Never waits; EAGAIN: another open file has it.
  [[nodiscard]] virtual int lock_byte(int file, std::uint64_t at) = 0;
  virtual int unlock_byte(int file, std::uint64_t at) = 0;

  virtual Outcome<FileStat> stat(const std::string& path, Links links) = 0;
  virtual Outcome<std::vector<std::string>> list(const std::string& folder) = 0;  // names
  [[nodiscard]] virtual int access(const std::string& path, int rights) = 0;
  [[nodiscard]] virtual int chmod(const std::string& path, mode_t mode) = 0;
  [[nodiscard]] virtual int mkdir(const std::string& path, mode_t mode) = 0;
  [[nodiscard]] virtual int rename(const std::string& from, const std::string& to) = 0;
  virtual int unlink(const std::string& path) = 0;

  // Whether the file system is of this machine alone, so that locks work and cost no network.
  virtual Outcome<bool> is_node_local(const std::string& path) = 0;
};

std::string error_text(int error);

// Of the process or the machine as it is now, not of the file.
bool is_refusal(int error);

// The open file under a number above those of stdin, stdout and stderr. Where the caller has closed
// one of these, a file of ours would get its number, and the log or a print would go into it. A
// negative number: errno says why there is no file.
Outcome<int> above_standard(int file);

// The real one.
FileSystem& posix_file_system();

}  // namespace rlk::cache
