// SPDX-License-Identifier: Apache-2.0
// Appends to `.usage`, reads it and keeps it small.
#include "cache/usage_log.hpp"

#include "cache/entry_file.hpp"
#include "cache/files/folder.hpp"
#include "cache/files/lock_place.hpp"
#include "cache/files/open_file.hpp"
#include "cache/never_throwing.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <thread>
#include <tuple>

namespace rlk::cache {
namespace {

// Whatever lies there, reading it ends.
constexpr std::uint64_t k_most_read_bytes = std::uint64_t{16} << 20;
constexpr int k_flags = O_NOFOLLOW | O_NONBLOCK | O_NOCTTY;

}  // namespace

UsageLog::UsageLog(const StoreOptions& options, FileSystem& files, UsageLimits limits)
    : folder_(options.read_write.value_or("")),
      path_(folder_ + '/' + k_usage_name),
      sharing_(options.sharing),
      local_folders_(options.local_folders),
      files_(files),
      limits_(limits) {}

void UsageLog::record(const Usage& usage) noexcept {
  never_throwing("usage", [&] {
    const std::string line = usage_line(usage);
    if (!line.empty() && !gave_up_ && is_folder_sound()) append(line);
  });
}

std::vector<Usage> UsageLog::read() noexcept {
  std::vector<Usage> sums;
  never_throwing("usage", [&] {
    if (is_folder_sound()) sums = sum_usage(read_text());
  });
  return sums;
}

bool UsageLog::is_folder_sound() {
  if (folder_.empty()) return false;
  const FolderTrust trust = check_folder(files_, folder_, sharing_);
  return trust.error == 0 && trust.problem.empty();
}

// The rules of entries.
bool UsageLog::may_use(OpenFile& file, FileStat& stat) {
  if (file.error() != 0) return false;
  const auto found = files_.stat_open(file.number());
  stat = found.value;
  return found && stat.kind == FileKind::regular &&
         trust_problem(path_, stat, sharing_, current_identity()).empty();
}

std::unique_ptr<FileLock> UsageLog::take_lock() {
  const LockPlace place = lock_place(files_, folder_, local_folders_);
  if (place.path.empty()) return nullptr;
  auto lock = std::make_unique<FileLock>(files_, place.path, sharing_, k_usage_byte);
  const auto end = std::chrono::steady_clock::now() + limits_.most_wait;
  std::chrono::microseconds pause{50};
  int error = lock->try_lock();
  for (; error == EAGAIN; error = lock->try_lock()) {
    if (std::chrono::steady_clock::now() >= end) {
      gave_up_ = true;  // no later call is to wait as long
      break;
    }
    std::this_thread::sleep_for(pause);
    pause = std::min(2 * pause, std::chrono::microseconds(2000));
  }
  return error == 0 ? std::move(lock) : nullptr;
}

void UsageLog::append(const std::string& line) {
  const auto lock = take_lock();
  if (!lock) return;
  const mode_t mode = mark_mode(sharing_);
  OpenFile file(files_, path_, O_WRONLY | O_APPEND | O_CREAT | k_flags, mode);
  FileStat stat;
  if (!may_use(file, stat)) return;
  // Made just now under an umask that takes rights away.
  if ((stat.mode & mode) != mode && stat.owner == ::geteuid()) {
    std::ignore = files_.chmod_open(file.number(), mode);
  }
  if (file.write(line.data(), line.size()) != 0) return;
  if (stat.size_bytes + line.size() > limits_.most_bytes) fold();
}

std::string UsageLog::read_text() {
  OpenFile file(files_, path_, O_RDONLY | k_flags);
  FileStat stat;
  if (!may_use(file, stat)) return {};
  std::string text(std::min(stat.size_bytes, k_most_read_bytes), '\0');
  text.resize(file.read(text.data(), text.size()).value);
  return text;
}

void UsageLog::fold() {
  const std::string text = read_text();
  if (text.empty()) return;  // could not be read
  std::ignore = publish(files_, folder_, k_usage_name,
                        usage_text(sum_usage(text), limits_.most_bytes / 2), sharing_);
}

}  // namespace rlk::cache
