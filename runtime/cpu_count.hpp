// SPDX-License-Identifier: Apache-2.0
// How many threads this process may sensibly run.
#pragma once

#include <filesystem>
#include <optional>
#include <string_view>

namespace rlk::runtime {

// Processors in the calling thread's affinity mask, at least 1.
int affinity_cpus();

// The cgroup CPU quota in whole processors, rounded up; nothing where there is none. Reads
// <root>/proc/self/cgroup and <root>/sys/fs/cgroup, versions 1 and 2, parent groups too.
std::optional<int> cgroup_cpus(const std::filesystem::path& root = "/");

// The least of the two above, at least 1.
int usable_cpus();

// The first number of an OMP_NUM_THREADS value such as "4" or "4,2"; nothing if it has none.
std::optional<int> parse_omp_num_threads(std::string_view value);

// The lesser of usable_cpus() and the environment's OMP_NUM_THREADS. RLK_NUM_THREADS is read
// elsewhere.
int default_num_threads();

}  // namespace rlk::runtime
