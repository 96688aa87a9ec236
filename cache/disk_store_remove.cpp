// SPDX-License-Identifier: Apache-2.0
// Removes from the read-write folder, at a person's wish.
#include "cache/disk_store.hpp"
#include "cache/files/open_file.hpp"
#include "cache/never_throwing.hpp"
#include "cache/usage_log.hpp"

#include <cerrno>

namespace rlk::cache {

// Why nothing may be removed from the read-write folder; empty also if it is absent.
std::string DiskStore::refusal() {
  const FolderTrust trust = check_folder(files_, layers_.front().folder, sharing_);
  const bool is_absent = trust.error == ENOENT || trust.error == ENOTDIR;
  if (trust.error == 0 || is_absent) return trust.problem;
  return fmt::format("{}: stat: {}", layers_.front().folder, error_text(trust.error));
}

Swept DiskStore::prune(const SweepLimits& limits) noexcept {
  Swept swept;
  never_throwing("prune", [&] {
    if (layers_.empty() || !layers_.front().read_write) return;
    swept.problem = refusal();
    if (swept.problem.empty()) swept = sweep(files_, layers_.front().folder, limits);
  });
  return swept;
}

Swept DiskStore::clear() noexcept {
  Swept swept = prune({.most_bytes = 0, .even_if_used = true});
  never_throwing("clear", [&] {
    if (layers_.empty() || !layers_.front().read_write || !swept.problem.empty()) return;
    swept.problem = remove_file(layers_.front().folder + '/' + k_usage_name);
  });
  return swept;
}

std::string DiskStore::remove(const ListedEntry& entry) noexcept {
  std::string problem = "not removed";
  never_throwing("remove", [&] {
    if (!entry.layer.read_write) {
      problem = fmt::format("{}: in a read-only layer", entry.path);
      return;
    }
    problem = refusal();
    if (problem.empty()) problem = remove_file(entry.path);
  });
  return problem;
}

std::string DiskStore::remove_file(const std::string& path) {
  const int error = uninterrupted([&] { return Outcome<int>{0, files_.unlink(path)}; }).error;
  if (error == 0 || error == ENOENT || error == ENOTDIR) return {};
  return fmt::format("{}: unlink: {}", path, error_text(error));
}

}  // namespace rlk::cache
