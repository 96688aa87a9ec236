// SPDX-License-Identifier: Apache-2.0
// Runs a tool of the system over a payload, without a shell.
#pragma once

#include <cstddef>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace rlk::cli {

// The program of that name in the absolute folders of PATH, then in `more_folders`.
std::optional<std::filesystem::path> find_tool(const std::string& name,
                                               const std::vector<std::string>& more_folders);

// What the tool prints when it is called with the arguments and a file that holds the bytes; the
// file is private and removed again. The tool's stderr is ours. Throws Error where the tool cannot
// be run or fails.
std::string run_tool(const std::filesystem::path& tool, std::vector<std::string> arguments,
                     std::span<const std::byte> bytes);

}  // namespace rlk::cli
