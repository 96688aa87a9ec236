// SPDX-License-Identifier: Apache-2.0
// Follows links and refuses what is no regular file.
#include "cli/text/output_path.hpp"

#include "runtime/error.hpp"

#include <fmt/format.h>

#include <filesystem>

namespace rlk::cli {

std::string output_path(const std::string& path) {
  std::error_code ignored;
  const auto status = std::filesystem::status(path, ignored);
  if (!std::filesystem::exists(status)) return path;
  if (!std::filesystem::is_regular_file(status)) {
    throw Error(fmt::format("{}: expected a regular file or none, got something else", path));
  }
  return std::filesystem::canonical(path).string();
}

}  // namespace rlk::cli
