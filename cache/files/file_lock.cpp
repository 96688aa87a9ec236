// SPDX-License-Identifier: Apache-2.0
// Opens, locks and closes lock files, and closes a forked child's copies.
#include "cache/files/file_lock.hpp"

#include <fcntl.h>
#include <pthread.h>
#include <unistd.h>

#include <charconv>
#include <mutex>
#include <set>

namespace rlk::cache {
namespace {

// Held while a lock file is opened or closed, so that a fork finds each one listed or absent.
struct OpenLocks {
  std::mutex mutex;
  std::set<FileLock*> locks;
};

OpenLocks& open_locks() {
  static auto* open = new OpenLocks;  // leaked on purpose: a fork may come while statics end
  return *open;
}

void abandon_all() {
  for (FileLock* lock : open_locks().locks) lock->abandon();
  open_locks().locks.clear();
  open_locks().mutex.unlock();
}

// While the library is loaded, not at first use: handlers that were set up earlier are called later
// before a fork, so that this mutex is taken after every lock under which one waits for a key.
[[maybe_unused]] const int k_fork_handlers = ::pthread_atfork(
    [] { open_locks().mutex.lock(); }, [] { open_locks().mutex.unlock(); }, abandon_all);

}  // namespace

std::uint64_t byte_of_key(std::string_view digest) {
  digest = digest.substr(0, 15);  // 60 bits: an offset is signed
  std::uint64_t number = 0;
  std::from_chars(digest.begin(), digest.end(), number, 16);
  return number + 1;
}

FileLock::FileLock(FileSystem& files, const std::string& path, Sharing sharing, std::uint64_t byte)
    : files_(files), byte_(byte) {
  const std::lock_guard guard(open_locks().mutex);
  const mode_t mode = mark_mode(sharing);
  // O_NONBLOCK: what lies there may be a device.
  file_.emplace(files, path, O_RDWR | O_CREAT | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY, mode);
  error_ = file_->error();
  if (error_ != 0) return;
  const auto stat = files.stat_open(file_->number());
  error_ = stat ? (stat.value.kind == FileKind::regular ? 0 : EINVAL) : stat.error;
  // Made just now under an umask that shuts the group out; where it is not ours, its owner did so.
  if (stat && stat.value.mode != mode && stat.value.owner == ::geteuid()) {
    std::ignore = files.chmod_open(file_->number(), mode);
  }
  open_locks().locks.insert(this);
}

FileLock::~FileLock() {
  const std::lock_guard guard(open_locks().mutex);
  if (open_locks().locks.erase(this) == 0) return;  // never opened, or a parent's
  // Said, not left to the close: a process that is just being started may still have a copy.
  if (is_held_) files_.unlock_byte(file_->number(), byte_);
  file_->close();
}

int FileLock::try_lock() {
  if (error_ != 0) return error_;
  const int error = uninterrupted([&] {
                      return Outcome<int>{0, files_.lock_byte(file_->number(), byte_)};
                    }).error;
  is_held_ = error == 0;
  return error;
}

void FileLock::abandon() {
  file_->close();
  error_ = EBADF;
}

}  // namespace rlk::cache
