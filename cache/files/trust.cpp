// SPDX-License-Identifier: Apache-2.0
// The ownership and mode rules of the read-write layer.
#include "cache/files/trust.hpp"

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>

namespace rlk::cache {
namespace {

bool in_a_group_of(const FileStat& stat, const Identity& identity) {
  return std::ranges::find(identity.groups, stat.group) != identity.groups.end();
}

}  // namespace

bool is_trusted_owner(const FileStat& stat, Sharing sharing, const Identity& identity) {
  return stat.owner == identity.user || stat.owner == 0 ||
         (sharing == Sharing::group && in_a_group_of(stat, identity));
}

std::string owner_problem(const std::string& path, const FileStat& stat, const Identity& identity) {
  return fmt::format(
      "{}: expected owner {} (or root), got {}; change its owner, remove it, or set RLK_CACHE_DIR "
      "to "
      "a folder of your own",
      path, identity.user, stat.owner);
}

Identity current_identity() {
  Identity identity{::geteuid(), {}};
  const int num_groups = ::getgroups(0, nullptr);
  if (num_groups > 0) {
    identity.groups.resize(static_cast<std::size_t>(num_groups));
    const int num_given = ::getgroups(num_groups, identity.groups.data());
    identity.groups.resize(num_given > 0 ? static_cast<std::size_t>(num_given) : 0);
  }
  identity.groups.push_back(::getegid());
  return identity;
}

std::string trust_problem(const std::string& path, const FileStat& stat, Sharing sharing,
                          const Identity& identity) {
  if (!is_trusted_owner(stat, sharing, identity)) return owner_problem(path, stat, identity);
  // A group that we do not belong to is no group to share with.
  const bool group_allowed = sharing == Sharing::group && in_a_group_of(stat, identity);
  const mode_t forbidden = group_allowed ? S_IWOTH : S_IWGRP | S_IWOTH;
  if ((stat.mode & forbidden) != 0) {
    const char* who = group_allowed ? "o" : "go";
    return fmt::format(
        "{}: expected a mode that only {} may write, got {:04o}; mend: chmod {}-w '{}'", path,
        group_allowed ? "its owner and group" : "its owner", stat.mode, who, path);
  }
  return {};
}

// setgid: what members make in a shared folder belongs to the folder's group.
mode_t folder_mode(Sharing sharing) { return sharing == Sharing::group ? 02770 : 0700; }
mode_t entry_mode(Sharing sharing) { return sharing == Sharing::group ? 0660 : 0600; }

}  // namespace rlk::cache
