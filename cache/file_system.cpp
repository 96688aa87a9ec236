// SPDX-License-Identifier: Apache-2.0
// The POSIX file system behind the seam.
#include "cache/file_system.hpp"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <string_view>
#include <system_error>

namespace rlk::cache {
namespace {

int error_of(int result) { return result == 0 ? 0 : errno; }

FileStat file_stat(const struct stat& from) {
  FileStat stat;
  stat.kind = S_ISREG(from.st_mode)   ? FileKind::regular
              : S_ISDIR(from.st_mode) ? FileKind::folder
              : S_ISLNK(from.st_mode) ? FileKind::symlink
                                      : FileKind::other;
  stat.size_bytes = static_cast<std::uint64_t>(from.st_size);
  stat.mode = from.st_mode & 07777;
  stat.owner = from.st_uid;
  stat.group = from.st_gid;
  stat.modified_s = from.st_mtim.tv_sec;
  stat.modified_ns = from.st_mtim.tv_nsec;
  return stat;
}

class PosixFileSystem final : public FileSystem {
 public:
  Outcome<int> open(const std::string& path, int flags, mode_t mode) override {
    const int file = ::open(path.c_str(), flags | O_CLOEXEC, mode);
    return {file, file < 0 ? errno : 0};
  }

  Outcome<std::size_t> read(int file, void* to, std::size_t num_bytes) override {
    const ssize_t num_read = ::read(file, to, num_bytes);
    if (num_read < 0) return {0, errno};
    return {static_cast<std::size_t>(num_read)};
  }

  Outcome<std::size_t> write(int file, const void* from, std::size_t num_bytes) override {
    const ssize_t num_written = ::write(file, from, num_bytes);
    if (num_written < 0) return {0, errno};
    return {static_cast<std::size_t>(num_written)};
  }

  Outcome<FileStat> stat_open(int file) override {
    struct stat found{};
    if (::fstat(file, &found) != 0) return {{}, errno};
    return {file_stat(found)};
  }

  int chmod_open(int file, mode_t mode) override { return error_of(::fchmod(file, mode)); }
  int fsync(int file) override { return error_of(::fsync(file)); }
  int touch(int file) override { return error_of(::futimens(file, nullptr)); }
  int close(int file) override { return error_of(::close(file)); }

  Outcome<FileStat> stat(const std::string& path, Links links) override {
    struct stat found{};
    const int flags = links == Links::keep ? AT_SYMLINK_NOFOLLOW : 0;
    if (::fstatat(AT_FDCWD, path.c_str(), &found, flags) != 0) return {{}, errno};
    return {file_stat(found)};
  }

  Outcome<std::vector<std::string>> list(const std::string& folder) override {
    DIR* stream = ::opendir(folder.c_str());
    if (stream == nullptr) return {{}, errno};
    Outcome<std::vector<std::string>> names;
    errno = 0;
    while (const dirent* item = ::readdir(stream)) {
      const std::string_view name = item->d_name;
      if (name != "." && name != "..") names.value.emplace_back(name);
      errno = 0;
    }
    names.error = errno;
    ::closedir(stream);
    return names;
  }

  int access(const std::string& path, int rights) override {
    return error_of(::faccessat(AT_FDCWD, path.c_str(), rights, AT_EACCESS));
  }
  int chmod(const std::string& path, mode_t mode) override {
    return error_of(::chmod(path.c_str(), mode));
  }
  int mkdir(const std::string& path, mode_t mode) override {
    return error_of(::mkdir(path.c_str(), mode));
  }
  int rename(const std::string& from, const std::string& to) override {
    return error_of(::rename(from.c_str(), to.c_str()));
  }
  int unlink(const std::string& path) override { return error_of(::unlink(path.c_str())); }
};

}  // namespace

std::string error_text(int error) { return std::generic_category().message(error); }

FileSystem& posix_file_system() {
  // Leaked on purpose: worker threads may still publish while statics are destroyed.
  static auto* files = new PosixFileSystem;
  return *files;
}

}  // namespace rlk::cache
