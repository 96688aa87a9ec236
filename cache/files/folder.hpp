// SPDX-License-Identifier: Apache-2.0
// The folder of a layer: may it be used, could it be written, and how it is made.
#pragma once

#include "cache/files/file_system.hpp"
#include "cache/files/trust.hpp"

#include <string>

namespace rlk::cache {

struct FolderTrust {
  std::string problem;  // why the folder is refused and how to mend it; empty if it may be used
  int error = 0;        // errno if it could not be looked at; ENOENT: there is none
};

// The rules of trust.hpp for a folder, which may be reached over a symbolic link of a trusted
// owner.
FolderTrust check_folder(FileSystem& files, const std::string& folder, Sharing sharing);

// Makes the folder and its parents. 0 or an errno; a folder that is there already is left as it is.
[[nodiscard]] int make_folder(FileSystem& files, const std::string& folder, Sharing sharing);

// Whether files could be made in the folder, or, if it is absent, whether it could be made.
bool could_write(FileSystem& files, const std::string& folder);

}  // namespace rlk::cache
