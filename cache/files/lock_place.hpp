// SPDX-License-Identifier: Apache-2.0
// Where the lock file of a cache folder lies: in the folder, or on this machine where the folder is
// on a network file system, whose locks may be slow, absent or hang with their server.
#pragma once

#include "cache/files/file_system.hpp"
#include "cache/files/trust.hpp"

#include <span>
#include <string>

namespace rlk::cache {

struct LockPlace {
  std::string path;     // of the lock file; empty: none can be made
  std::string problem;  // why not
};

// `folder` is there and trusted. Of `local_parents` the first that is node-local is taken, in which
// a private folder is made: `<parent>/rlk-<uid>/locks/<digest of the cache folder's path>`. So the
// processes of one user on one machine exclude each other, which is all that a lock is for here.
LockPlace lock_place(FileSystem& files, const std::string& folder,
                     std::span<const std::string> local_parents);

}  // namespace rlk::cache
