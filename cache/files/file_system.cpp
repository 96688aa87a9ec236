// SPDX-License-Identifier: Apache-2.0
// The POSIX file system behind the seam.
#include "cache/files/file_system.hpp"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <iterator>
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

// File systems that are no network's, by statfs's magic number; older headers lack some of the
// names. Any other is taken for one: NFS, SMB, Lustre, GPFS, Ceph, FUSE, 9p and whatever is new.
constexpr std::uint32_t k_node_local_magics[] = {
    0xef53,      // ext2, ext3, ext4
    0x58465342,  // xfs
    0x9123683e,  // btrfs
    0x01021994,  // tmpfs
    0x858458f6,  // ramfs
    0x794c7630,  // overlayfs
    0xf2f52010,  // f2fs
    0x2fc12fc1,  // zfs
    0xca451a4e,  // bcachefs
    0x73717368,  // squashfs
    0xe0f5e1e2,  // erofs
};

// One byte, for writing or nothing.
int set_lock(int file, short type, std::uint64_t at) {
  struct flock range{};  // l_pid must be 0
  range.l_type = type;
  range.l_whence = SEEK_SET;
  range.l_start = static_cast<off_t>(at);
  range.l_len = 1;
  const int error = error_of(::fcntl(file, F_OFD_SETLK, &range));
  return error == EACCES ? EAGAIN : error;  // POSIX allows either for a lock that another has
}

// A write past `ulimit -f` is an error alone: not also SIGXFSZ, which by default ends the process.
class FileSizeSignalBlocked {
 public:
  FileSizeSignalBlocked() {
    ::sigemptyset(&signal_);
    ::sigaddset(&signal_, SIGXFSZ);
    ::pthread_sigmask(SIG_BLOCK, &signal_, &before_);
  }
  ~FileSizeSignalBlocked() { ::pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  FileSizeSignalBlocked(const FileSizeSignalBlocked&) = delete;
  FileSizeSignalBlocked& operator=(const FileSizeSignalBlocked&) = delete;

  void take() const {
    const timespec at_once{};
    ::sigtimedwait(&signal_, nullptr, &at_once);
  }

 private:
  sigset_t signal_{}, before_{};
};

class PosixFileSystem final : public FileSystem {
 public:
  Outcome<int> open(const std::string& path, int flags, mode_t mode) override {
    return above_standard(::open(path.c_str(), flags | O_CLOEXEC, mode));
  }

  Outcome<std::size_t> read(int file, void* to, std::size_t num_bytes) override {
    const ssize_t num_read = ::read(file, to, num_bytes);
    if (num_read < 0) return {0, errno};
    return {static_cast<std::size_t>(num_read)};
  }

  Outcome<std::size_t> write(int file, const void* from, std::size_t num_bytes) override {
    const FileSizeSignalBlocked blocked;
    const ssize_t num_written = ::write(file, from, num_bytes);
    if (num_written < 0) {
      const int error = errno;
      if (error == EFBIG) blocked.take();
      return {0, error};
    }
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

  int lock_byte(int file, std::uint64_t at) override { return set_lock(file, F_WRLCK, at); }
  int unlock_byte(int file, std::uint64_t at) override { return set_lock(file, F_UNLCK, at); }

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

  Outcome<bool> is_node_local(const std::string& path) override {
    struct statfs found{};
    if (::statfs(path.c_str(), &found) != 0) return {false, errno};
    const auto magic = static_cast<std::uint32_t>(found.f_type);
    return {std::ranges::find(k_node_local_magics, magic) != std::end(k_node_local_magics)};
  }
};

}  // namespace

std::string error_text(int error) { return std::generic_category().message(error); }

bool is_refusal(int error) { return error == EMFILE || error == ENFILE || error == ENOMEM; }

Outcome<int> above_standard(int file) {
  if (file < 0) return {file, errno};
  if (file > STDERR_FILENO) return {file};
  const int moved = ::fcntl(file, F_DUPFD_CLOEXEC, STDERR_FILENO + 1);
  const int error = moved < 0 ? errno : 0;
  ::close(file);
  return {moved, error};
}

FileSystem& posix_file_system() {
  // Leaked on purpose: worker threads may still publish while statics are destroyed.
  static auto* files = new PosixFileSystem;
  return *files;
}

}  // namespace rlk::cache
