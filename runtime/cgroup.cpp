// SPDX-License-Identifier: Apache-2.0
// Walks up the control groups.
#include "runtime/cgroup.hpp"

#include <algorithm>
#include <fstream>
#include <limits>
#include <sstream>
#include <string>

namespace rlk::runtime {
namespace {

namespace fs = std::filesystem;

void lower(std::optional<std::int64_t>& least, const std::optional<std::int64_t>& limit) {
  if (limit) least = std::min(least.value_or(*limit), *limit);
}

// The least limit of a group and its parents. A container often sees a path that exists only
// outside of it, and its own group at the mount's root: files that are missing are passed over.
std::optional<std::int64_t> least_up(const fs::path& mount, fs::path group, ReadLimit read) {
  std::optional<std::int64_t> least;
  for (;; group = group.parent_path()) {
    lower(least, read(mount / group.relative_path()));
    if (group.relative_path().empty()) return least;
  }
}

bool names(const std::string& controllers, std::string_view wanted) {
  std::istringstream list(controllers);
  for (std::string name; std::getline(list, name, ',');) {
    if (name == wanted) return true;
  }
  return false;
}

// No limit is "max" in version 2 and a huge number in version 1.
std::optional<std::int64_t> read_bytes(const fs::path& file) {
  std::ifstream in(file);
  std::int64_t bytes = 0;
  if (!(in >> bytes)) return std::nullopt;
  return bytes;
}

}  // namespace

std::optional<std::int64_t> least_cgroup_limit(const fs::path& root, std::string_view controller,
                                               ReadLimit read_v2, ReadLimit read_v1) {
  const fs::path mount = root / "sys/fs/cgroup";
  std::optional<std::int64_t> least;
  std::ifstream groups(root / "proc/self/cgroup");
  // A line is "hierarchy:controllers:path"; version 2 has no controllers.
  for (std::string line; std::getline(groups, line);) {
    const auto first = line.find(':');
    const auto second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    const fs::path group = line.substr(second + 1);
    if (controllers.empty()) {
      lower(least, least_up(mount, group, read_v2));
    } else if (names(controllers, controller)) {
      // The folder is "cpu,cpuacct" with links "cpu" and "cpuacct" on most systems.
      auto limit = least_up(mount / controller, group, read_v1);
      if (!limit) limit = least_up(mount / controllers, group, read_v1);
      lower(least, limit);
    }
  }
  return least;
}

std::uint64_t available_memory_bytes(const fs::path& root) {
  std::optional<std::int64_t> least = least_cgroup_limit(
      root, "memory", [](const fs::path& folder) { return read_bytes(folder / "memory.max"); },
      [](const fs::path& folder) { return read_bytes(folder / "memory.limit_in_bytes"); });
  std::ifstream file(root / "proc/meminfo");
  for (std::string line; std::getline(file, line);) {
    constexpr std::string_view k_label = "MemAvailable:";
    if (!line.starts_with(k_label)) continue;
    lower(least, std::strtoll(line.c_str() + k_label.size(), nullptr, 10) * 1024);
  }
  return static_cast<std::uint64_t>(least.value_or(std::numeric_limits<std::int64_t>::max()));
}

}  // namespace rlk::runtime
