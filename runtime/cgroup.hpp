// SPDX-License-Identifier: Apache-2.0
// Limits of this process's control groups, versions 1 and 2.
#pragma once

#include "runtime/function_ref.hpp"

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string_view>

namespace rlk::runtime {

// How a limit is read from a group's folder; nothing where it has none.
using ReadLimit = FunctionRef<std::optional<std::int64_t>(const std::filesystem::path& folder)>;

// The least limit over this process's groups and their parents; nothing where there is none. Reads
// <root>/proc/self/cgroup and <root>/sys/fs/cgroup. `controller` is version 1's name.
std::optional<std::int64_t> least_cgroup_limit(const std::filesystem::path& root,
                                               std::string_view controller, ReadLimit read_v2,
                                               ReadLimit read_v1);

// What could be allocated without swapping or being killed: memory available on the machine, at
// most what a control group allows.
std::uint64_t available_memory_bytes(const std::filesystem::path& root = "/");

}  // namespace rlk::runtime
