// SPDX-License-Identifier: Apache-2.0
// Where the read-write folder is when nobody says: decided from the environment, nothing is made.
#pragma once

#include "cache/files/file_system.hpp"

#include <functional>
#include <optional>
#include <string>

namespace rlk::cache {

// The variables that decide, as the process got them; an empty one counts as unset.
struct FolderEnvironment {
  std::optional<std::string> rlk_cache_dir;
  std::optional<std::string> xdg_cache_home;
  std::optional<std::string> home;
  std::optional<std::string> tmpdir;
};

// `lookup` gives a variable's value or nothing, as runtime/settings.hpp's Lookup does.
FolderEnvironment folder_environment(
    const std::function<std::optional<std::string>(const char* variable)>& lookup);

struct DefaultFolder {
  std::optional<std::string> path;  // absolute; nothing if even the temp folder is of no use
  std::string note;           // to be said once: why it is not where one expects it; else empty
  bool is_temporary = false;  // under the temp folder, and private whatever RLK_CACHE_SHARED says
};

// $RLK_CACHE_DIR; else $XDG_CACHE_HOME/rlk; else ~/.cache/rlk; else, if that could not be written,
// a private folder of this user under $TMPDIR or /tmp. By the rules of XDG a relative path counts
// as unset. Never throws.
DefaultFolder default_folder(const FolderEnvironment& environment,
                             FileSystem& files = posix_file_system());

}  // namespace rlk::cache
