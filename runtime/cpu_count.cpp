// SPDX-License-Identifier: Apache-2.0
// Reads affinity, cgroup quota and OMP_NUM_THREADS.
#include "runtime/cpu_count.hpp"

#include "runtime/cgroup.hpp"
#include "runtime/given_text.hpp"
#include "runtime/settings.hpp"

#include <sched.h>

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <fstream>
#include <memory>
#include <string>
#include <thread>

namespace rlk::runtime {
namespace {

namespace fs = std::filesystem;

std::optional<std::int64_t> quota_cpus(std::int64_t quota_us, std::int64_t period_us) {
  if (quota_us <= 0 || period_us <= 0) return std::nullopt;
  return std::clamp<std::int64_t>((quota_us - 1) / period_us + 1, 1, 1 << 16);
}

// cpu.max: "max 100000" or "150000 100000".
std::optional<std::int64_t> read_v2(const fs::path& folder) {
  std::ifstream file(folder / "cpu.max");
  std::int64_t quota_us = 0, period_us = 0;
  if (!(file >> quota_us >> period_us)) return std::nullopt;
  return quota_cpus(quota_us, period_us);
}

std::optional<std::int64_t> read_v1(const fs::path& folder) {
  std::ifstream quota_file(folder / "cpu.cfs_quota_us"), period_file(folder / "cpu.cfs_period_us");
  std::int64_t quota_us = 0, period_us = 0;
  if (!(quota_file >> quota_us) || !(period_file >> period_us)) return std::nullopt;
  return quota_cpus(quota_us, period_us);
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
  const auto cpus = least_cgroup_limit(
      root, "cpu", [](const fs::path& folder) { return read_v2(folder); },
      [](const fs::path& folder) { return read_v1(folder); });
  if (!cpus) return std::nullopt;
  return static_cast<int>(*cpus);
}

std::optional<int> parse_omp_num_threads(std::string_view value) {
  while (!value.empty() && (value.front() == ' ' || value.front() == '\t')) value.remove_prefix(1);
  int number = 0;
  const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), number);
  if (error != std::errc{} || number < 1) return std::nullopt;
  const bool ends = end == value.data() + value.size() || *end == ',' || *end == ' ';
  return ends ? std::optional(number) : std::nullopt;
}

int usable_cpus() {
  const int cpus = affinity_cpus();
  return std::min(cpus, cgroup_cpus().value_or(cpus));
}

int default_num_threads() {
  int least = usable_cpus();
  if (const auto value = process_environment("OMP_NUM_THREADS")) {
    if (auto number = parse_omp_num_threads(*value)) {
      least = std::min(least, *number);
    } else {
      log().warn("OMP_NUM_THREADS: expected a whole number above 0, got {}; it counts as unset",
                 in_quotes(*value));
    }
  }
  return least;
}

}  // namespace rlk::runtime
