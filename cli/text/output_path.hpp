// SPDX-License-Identifier: Apache-2.0
// Where a file that the user named is written by rename.
#pragma once

#include <string>

namespace rlk::cli {

// The path, or what it points to where it is a link. Throws Error where something lies there that a
// rename should not replace: a folder, a device.
std::string output_path(const std::string& path);

}  // namespace rlk::cli
