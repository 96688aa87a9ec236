// SPDX-License-Identifier: Apache-2.0
// The ownership and mode rules of the read-write layer.
#include "cache/files/trust.hpp"

#include <fmt/format.h>
#include <grp.h>
#include <pwd.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace rlk::cache {
namespace {

bool in_a_group_of(const FileStat& stat, const Identity& identity) {
  return std::ranges::find(identity.groups, stat.group) != identity.groups.end();
}

// Whether the group database has another member than the user; primary groups do not count.
bool lists_others(gid_t group, uid_t user) {
  std::vector<char> group_text(1 << 16), user_text(1 << 16);
  struct group entry{}, *found = nullptr;
  const int error = ::getgrgid_r(group, &entry, group_text.data(), group_text.size(), &found);
  // The database of a container most often does not know the group, or is absent.
  if (found == nullptr) return error != 0 && error != ENOENT && error != ESRCH;
  struct passwd account{}, *us = nullptr;
  ::getpwuid_r(user, &account, user_text.data(), user_text.size(), &us);
  for (char** member = entry.gr_mem; *member != nullptr; ++member) {
    if (us == nullptr || std::strcmp(*member, us->pw_name) != 0) return true;
  }
  return false;
}

// The group that a user has for himself by the custom of Linux: of the same number, nobody else in
// it. That its members may write lets nobody in, so that what fsGroup does to it needs no setting.
bool is_private_group(const FileStat& stat, const Identity& identity) {
  return stat.group == identity.user && in_a_group_of(stat, identity) &&
         !lists_others(stat.group, identity.user);
}

bool is_trusted_owner(const FileStat& stat, Sharing sharing, const Identity& identity) {
  return stat.owner == identity.user || stat.owner == 0 || sharing == Sharing::all ||
         (sharing == Sharing::group && in_a_group_of(stat, identity));
}

bool has_trusted_mode(const FileStat& stat, Sharing sharing, const Identity& identity) {
  // A link has no mode, but who made it chose where it points.
  if (sharing == Sharing::all || stat.kind == FileKind::symlink) return true;
  if ((stat.mode & S_IWOTH) != 0) return false;
  // A group that we do not belong to is no group to share with, but root needs to be in none.
  return (stat.mode & S_IWGRP) == 0 || is_private_group(stat, identity) ||
         (sharing == Sharing::group && (identity.user == 0 || in_a_group_of(stat, identity)));
}

}  // namespace

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
                          const Identity& identity, bool closed) {
  const auto is_trusted = [&](Sharing with) {
    return is_trusted_owner(stat, with, identity) && has_trusted_mode(stat, with, identity);
  };
  if (is_trusted(sharing)) return {};
  std::string wrong, mend;
  if (!is_trusted_owner(stat, sharing, identity)) {
    wrong = fmt::format("owner {} (or root), got {}", identity.user, stat.owner);
  } else {
    wrong = fmt::format("a mode that only its owner{} may write, got {:04o}",
                        sharing == Sharing::group ? " and a group of ours" : "", stat.mode);
    // A setgid bit is an orchestrator's mark, who would undo what we advise.
    const bool is_ours = stat.owner == identity.user || identity.user == 0;
    if (is_ours && (stat.mode & S_ISGID) == 0) {
      mend = fmt::format("chmod {}-w '{}', or where that does not last ",
                         sharing == Sharing::group ? "o" : "go", path);
    }
  }
  if (closed) {
    return fmt::format("{}: expected {}; closed to us; mend: another RLK_CACHE_DIR", path, wrong);
  }
  return fmt::format(
      "{}: expected {}; mend: {}RLK_CACHE_SHARED={} if all who may write it are trusted (as where "
      "fsGroup or the mount sets owners and rights), else another RLK_CACHE_DIR",
      path, wrong, mend, is_trusted(Sharing::group) ? "group" : "all");
}

// setgid: what members make in a shared folder belongs to the folder's group.
mode_t folder_mode(Sharing sharing) {
  return sharing == Sharing::owner ? 0700 : sharing == Sharing::group ? 02770 : 02775;
}
mode_t entry_mode(Sharing sharing) { return folder_mode(sharing) & 0666; }
mode_t mark_mode(Sharing sharing) { return sharing == Sharing::all ? 0666 : entry_mode(sharing); }

}  // namespace rlk::cache
