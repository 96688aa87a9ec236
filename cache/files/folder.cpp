// SPDX-License-Identifier: Apache-2.0
// Checks and makes the folders of layers.
#include "cache/files/folder.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <tuple>
#include <utility>

namespace rlk::cache {

FolderTrust check_folder(FileSystem& files, const std::string& folder, Sharing sharing) {
  const Identity identity = current_identity();
  const auto problem_of = [&](const FileStat& stat) {
    std::string problem = trust_problem(folder, stat, sharing, identity);
    // Asked of the system: a server or an access list may know more than the mode says.
    if (!problem.empty() && files.access(folder, R_OK | X_OK) == EACCES) {
      problem = trust_problem(folder, stat, sharing, identity, true);
    }
    return problem;
  };
  auto stat = files.stat(folder, Links::keep);
  if (!stat) return {{}, stat.error};
  if (stat.value.kind == FileKind::symlink) {
    auto problem = problem_of(stat.value);
    if (!problem.empty()) return {std::move(problem), 0};
    stat = files.stat(folder, Links::follow);
    if (!stat) return {{}, stat.error};
  }
  if (stat.value.kind != FileKind::folder) {
    return {fmt::format("{}: expected a folder, got something else; remove it", folder), 0};
  }
  return {problem_of(stat.value), 0};
}

int make_folder(FileSystem& files, const std::string& folder, Sharing sharing) {
  for (std::size_t end = 0; end != std::string::npos;) {
    end = folder.find('/', end + 1);
    const std::string path = folder.substr(0, end);
    // Asked first: for one that exists mkdir may say EROFS or EACCES instead of EEXIST.
    if (files.stat(path, Links::follow)) continue;
    const mode_t mode = end == std::string::npos ? folder_mode(sharing) : 0700;
    const int error = files.mkdir(path, mode);
    if (error == EEXIST) continue;  // another process was faster
    if (error != 0) return error;
    // The umask may have taken rights away. Some mounts know no modes; who uses the folder looks.
    std::ignore = files.chmod(path, mode);
  }
  return 0;
}

bool could_write(FileSystem& files, const std::string& folder) {
  std::string nearest = folder;
  auto stat = files.stat(nearest, Links::follow);
  while (stat.error == ENOENT && nearest.size() > 1) {
    const std::size_t slash = nearest.rfind('/');
    nearest.resize(slash == 0 || slash == std::string::npos ? 1 : slash);
    stat = files.stat(nearest, Links::follow);
  }
  return stat && stat.value.kind == FileKind::folder && files.access(nearest, W_OK | X_OK) == 0;
}

}  // namespace rlk::cache
