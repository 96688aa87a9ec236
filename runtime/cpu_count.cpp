// SPDX-License-Identifier: Apache-2.0
// Reads affinity, cgroup quota and OMP_NUM_THREADS.
#include "runtime/cpu_count.hpp"

#include <sched.h>

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <sstream>
#include <string>
#include <thread>

namespace rlk::runtime {
namespace {

namespace fs = std::filesystem;

std::optional<int> quota_cpus(std::int64_t quota_us, std::int64_t period_us) {
  if (quota_us <= 0 || period_us <= 0) return std::nullopt;
  return static_cast<int>(std::clamp<std::int64_t>((quota_us - 1) / period_us + 1, 1, 1 << 16));
}

// cpu.max: "max 100000" or "150000 100000".
std::optional<int> read_v2(const fs::path& folder) {
  std::ifstream file(folder / "cpu.max");
  std::int64_t quota_us = 0, period_us = 0;
  if (!(file >> quota_us >> period_us)) return std::nullopt;
  return quota_cpus(quota_us, period_us);
}

std::optional<int> read_v1(const fs::path& folder) {
  std::ifstream quota_file(folder / "cpu.cfs_quota_us"), period_file(folder / "cpu.cfs_period_us");
  std::int64_t quota_us = 0, period_us = 0;
  if (!(quota_file >> quota_us) || !(period_file >> period_us)) return std::nullopt;
  return quota_cpus(quota_us, period_us);
}

// The least quota of a group and its parents. A container often sees a path that exists only
// outside of it, and its own group at the mount's root: files that are missing are passed over.
template <class Read>
std::optional<int> least_up(const fs::path& mount, fs::path group, Read read) {
  std::optional<int> least;
  for (;; group = group.parent_path()) {
    if (auto cpus = read(mount / group.relative_path())) {
      least = std::min(least.value_or(*cpus), *cpus);
    }
    if (group.relative_path().empty()) return least;
  }
}

bool names_cpu(const std::string& controllers) {
  std::istringstream list(controllers);
  for (std::string name; std::getline(list, name, ',');) {
    if (name == "cpu") return true;
  }
  return false;
}

}  // namespace

int affinity_cpus() {
  // The kernel refuses a mask shorter than its own, so try longer ones.
  for (int num_cpus = 1024; num_cpus <= 1 << 16; num_cpus *= 2) {
    std::unique_ptr<cpu_set_t, void (*)(cpu_set_t*)> mask(CPU_ALLOC(num_cpus),
                                                          [](cpu_set_t* set) { CPU_FREE(set); });
    const std::size_t bytes = CPU_ALLOC_SIZE(num_cpus);
    if (mask && sched_getaffinity(0, bytes, mask.get()) == 0) {
      return std::max(1, CPU_COUNT_S(bytes, mask.get()));
    }
  }
  return std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
}

std::optional<int> cgroup_cpus(const fs::path& root) {
  const fs::path mount = root / "sys/fs/cgroup";
  std::optional<int> least;
  std::ifstream groups(root / "proc/self/cgroup");
  // A line is "hierarchy:controllers:path"; version 2 has no controllers.
  for (std::string line; std::getline(groups, line);) {
    const auto first = line.find(':');
    const auto second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    const fs::path group = line.substr(second + 1);
    std::optional<int> cpus;
    if (controllers.empty()) {
      cpus = least_up(mount, group, read_v2);
    } else if (names_cpu(controllers)) {
      // The folder is "cpu,cpuacct" with links "cpu" and "cpuacct" on most systems.
      cpus = least_up(mount / "cpu", group, read_v1);
      if (!cpus) cpus = least_up(mount / controllers, group, read_v1);
    }
    if (cpus) least = std::min(least.value_or(*cpus), *cpus);
  }
  return least;
}

std::optional<int> parse_omp_num_threads(std::string_view value) {
  while (!value.empty() && (value.front() == ' ' || value.front() == '\t')) value.remove_prefix(1);
  int number = 0;
  const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), number);
  if (error != std::errc{} || number < 1) return std::nullopt;
  const bool ends = end == value.data() + value.size() || *end == ',' || *end == ' ';
  return ends ? std::optional(number) : std::nullopt;
}

int default_num_threads() {
  int least = affinity_cpus();
  if (auto cpus = cgroup_cpus()) least = std::min(least, *cpus);
  if (const char* value = std::getenv("OMP_NUM_THREADS")) {
    if (auto number = parse_omp_num_threads(value)) least = std::min(least, *number);
  }
  return least;
}

}  // namespace rlk::runtime
