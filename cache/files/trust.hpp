// SPDX-License-Identifier: Apache-2.0
// Who may have written what we are about to execute: the ownership and mode rules of the read-write
// layer. An entry is code, so a folder or file that another user could have written is refused. We
// cannot tell who set the rights: a kubelet or a mount may do so anew each time. So it is the owner
// who says, by RLK_CACHE_SHARED, that those who may write are trusted.
#pragma once

#include "cache/files/file_system.hpp"

#include <string>
#include <vector>

namespace rlk::cache {

// RLK_CACHE_SHARED. group: members of the file's group, one of ours, may own and write files.
// all: whoever could own or write them is trusted.
enum class Sharing { owner, group, all };

// Who we are: effective user, effective and supplementary groups.
struct Identity {
  uid_t user = 0;
  std::vector<gid_t> groups;
};

Identity current_identity();

// Empty if a file, folder or link with this stat may be used; else why not and how to mend it.
// closed: the system keeps us out as well, which no setting changes.
std::string trust_problem(const std::string& path, const FileStat& stat, Sharing sharing,
                          const Identity& identity, bool closed = false);

// Rights given to what we make, whatever the umask. With `all` everybody may read; who may write is
// for the folder's owner to say, so that we never add to them.
mode_t folder_mode(Sharing sharing);
mode_t entry_mode(Sharing sharing);
// Of files that only mark something: who writes them makes nobody run code.
mode_t mark_mode(Sharing sharing);

}  // namespace rlk::cache
