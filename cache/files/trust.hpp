// SPDX-License-Identifier: Apache-2.0
// Who may have written what we are about to execute: the ownership and mode rules of the read-write
// layer. An entry is code, so a folder or file that another user could have written is refused.
#pragma once

#include "cache/files/file_system.hpp"

#include <string>
#include <vector>

namespace rlk::cache {

// RLK_CACHE_SHARED: `group` lets members of the file's group own and write files.
enum class Sharing { owner, group };

// Who we are: effective user, effective and supplementary groups.
struct Identity {
  uid_t user = 0;
  std::vector<gid_t> groups;
};

Identity current_identity();

// Empty if a file or folder with this stat may be used; else why not and how to mend it.
std::string trust_problem(const std::string& path, const FileStat& stat, Sharing sharing,
                          const Identity& identity);

// Whether this owner may have chosen what we run.
bool is_trusted_owner(const FileStat& stat, Sharing sharing, const Identity& identity);
std::string owner_problem(const std::string& path, const FileStat& stat, const Identity& identity);

// Rights given to what we make, whatever the umask.
mode_t folder_mode(Sharing sharing);
mode_t entry_mode(Sharing sharing);

}  // namespace rlk::cache
