// SPDX-License-Identifier: Apache-2.0
// Chooses the lock file of a cache folder.
#include "cache/files/lock_place.hpp"

#include "cache/files/bytes.hpp"
#include "cache/files/folder.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>

namespace rlk::cache {
namespace {

// Anybody may write in the parent, so what lies there may be planted.
std::string private_folder_problem(FileSystem& files, const std::string& folder) {
  if (const int error = make_folder(files, folder, Sharing::owner); error != 0) {
    return fmt::format("{}: {}", folder, error_text(error));
  }
  const FolderTrust trust = check_folder(files, folder, Sharing::owner);
  if (trust.error != 0) return fmt::format("{}: {}", folder, error_text(trust.error));
  if (trust.problem.empty()) return {};
  // RLK_CACHE_SHARED, which the problem's words name, is not asked here.
  return fmt::format("{}: expected a folder that only user {} may write; remove it", folder,
                     ::geteuid());
}

}  // namespace

LockPlace lock_place(FileSystem& files, const std::string& folder,
                     std::span<const std::string> local_parents) {
  if (files.is_node_local(folder).value) return {folder + "/.lock", {}};
  std::string problem = "no folder of this machine alone for locks";
  for (const std::string& parent : local_parents) {
    if (!files.is_node_local(parent).value) continue;
    // Each level is checked: whoever owns the upper one may exchange the lower.
    const std::string mine = fmt::format("{}/rlk-{}", parent, ::geteuid());
    problem = private_folder_problem(files, mine);
    if (problem.empty()) problem = private_folder_problem(files, mine + "/locks");
    if (problem.empty()) {
      const auto sum = checksum(folder.data(), folder.size());
      return {fmt::format("{}/locks/{}", mine, hex(sum.digest)), {}};
    }
  }
  return {{}, std::move(problem)};
}

}  // namespace rlk::cache
