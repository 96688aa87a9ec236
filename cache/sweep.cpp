// SPDX-License-Identifier: Apache-2.0
// Lists a folder, chooses what goes and removes it.
#include "cache/sweep.hpp"

#include "cache/entry_name.hpp"
#include "cache/files/open_file.hpp"

#include <fcntl.h>
#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <ctime>
#include <tuple>
#include <vector>

namespace rlk::cache {
namespace {

constexpr std::int64_t k_sweep_every_s = 3600;
constexpr std::int64_t k_writer_dead_after_s = 3600;  // a write takes seconds at most

struct SweptEntry {
  std::int64_t modified_s = 0;
  std::int64_t modified_ns = 0;
  std::uint64_t bytes = 0;
  std::string path;
};

class Sweep {
 public:
  Sweep(FileSystem& files, const std::string& folder, const SweepLimits& limits)
      : files_(files), folder_(folder), limits_(limits) {}

  Swept run() {
    list_entries(std::time(nullptr));
    std::ranges::sort(entries_, {}, [](const SweptEntry& entry) {
      return std::tie(entry.modified_s, entry.modified_ns, entry.path);
    });
    // What is meant to be left: an entry that cannot be removed, or was used meanwhile, does not
    // cost a more recent one its place.
    std::uint64_t bytes = swept_.bytes;
    const std::uint64_t aim =
        bytes > limits_.most_bytes ? limits_.down_to_bytes : limits_.most_bytes;
    const std::int64_t oldest = std::time(nullptr) - limits_.most_idle_s.value_or(0);
    for (const SweptEntry& entry : entries_) {
      const bool is_idle = limits_.most_idle_s && entry.modified_s < oldest;
      if ((bytes <= aim && !is_idle) || gave_up_) break;
      bytes -= entry.bytes;
      remove_entry(entry);
    }
    return std::move(swept_);
  }

 private:
  void list_entries(std::int64_t now_s) {
    const auto names = files_.list(folder_);
    if (!names && names.error != ENOENT) note("list", names.error);
    for (const std::string& name : names.value) {
      const bool is_temp = is_temp_file_name(name);
      if (!is_temp && !parse_entry_file_name(name)) continue;
      std::string path = folder_ + '/' + name;
      const auto stat = files_.stat(path, Links::keep);
      if (!stat && stat.error != ENOENT) note("stat", stat.error);
      if (!stat || stat.value.kind == FileKind::folder) continue;
      if (is_temp) {
        const bool is_left = now_s - stat.value.modified_s > k_writer_dead_after_s;
        if (is_left && unlink(path)) swept_.leftovers.push_back(std::move(path));
        continue;
      }
      ++swept_.num_entries;
      swept_.bytes += stat.value.size_bytes;
      entries_.push_back(
          {stat.value.modified_s, stat.value.modified_ns, stat.value.size_bytes, std::move(path)});
    }
  }

  void remove_entry(const SweptEntry& entry) {
    // Used or replaced since the folder was listed: not the least recently used any more.
    const auto stat = files_.stat(entry.path, Links::keep);
    const bool is_gone = stat.error == ENOENT;
    const bool is_same = stat && stat.value.modified_s == entry.modified_s &&
                         stat.value.modified_ns == entry.modified_ns;
    if (!is_gone && ((!is_same && !limits_.even_if_used) || !unlink(entry.path))) return;
    --swept_.num_entries;
    swept_.bytes -= entry.bytes;
    if (is_gone) return;
    ++swept_.num_removed;
    swept_.removed_bytes += entry.bytes;
    swept_.removed.push_back(entry.path);
  }

  bool unlink(const std::string& path) {
    if (limits_.dry_run) return true;
    const int error = uninterrupted([&] { return Outcome<int>{0, files_.unlink(path)}; }).error;
    if (error == 0 || error == ENOENT) return true;
    note("unlink", error);
    // The next ones would fail the same way.
    gave_up_ = error == EROFS || error == EACCES || error == EPERM;
    return false;
  }

  void note(const char* what, int error) {
    if (swept_.problem.empty())
      swept_.problem = fmt::format("{}: {}: {}", folder_, what, error_text(error));
  }

  FileSystem& files_;
  const std::string& folder_;
  const SweepLimits& limits_;
  std::vector<SweptEntry> entries_;
  Swept swept_;
  bool gave_up_ = false;
};

std::string stamp_path(const std::string& folder) { return folder + "/.swept"; }

bool is_old(const FileStat& stamp) {
  // A stamp of the future is of a clock that was wrong.
  const std::int64_t age_s = std::time(nullptr) - stamp.modified_s;
  return age_s >= k_sweep_every_s || age_s <= -k_sweep_every_s;
}

}  // namespace

Swept sweep(FileSystem& files, const std::string& folder, const SweepLimits& limits) {
  return Sweep(files, folder, limits).run();
}

bool is_sweep_due(FileSystem& files, const std::string& folder) {
  const auto stat = files.stat(stamp_path(folder), Links::keep);
  return stat ? is_old(stat.value) : stat.error == ENOENT;
}

Outcome<bool> claim_sweep(FileSystem& files, const std::string& folder, Sharing sharing) {
  constexpr int k_flags = O_WRONLY | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY;
  const mode_t mode = mark_mode(sharing);
  OpenFile made(files, stamp_path(folder), k_flags | O_CREAT | O_EXCL, mode);
  if (made.error() == 0) {
    std::ignore = files.chmod_open(made.number(), mode);
    return {true};
  }
  if (made.error() != EEXIST) return {false, made.error()};
  OpenFile stamp(files, stamp_path(folder), k_flags);
  if (stamp.error() != 0) return {false, stamp.error()};
  const auto stat = files.stat_open(stamp.number());
  if (!stat) return {false, stat.error};
  if (!is_old(stat.value)) return {false};
  const int error = files.touch(stamp.number());
  return {error == 0, error};
}

}  // namespace rlk::cache
