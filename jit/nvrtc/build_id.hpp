// SPDX-License-Identifier: Apache-2.0
// The GNU build-id of a shared library, read from its file without opening it as a library.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

namespace rlk::jit {

// In lower-case hex. Nothing if the file cannot be read, is no 64-bit ELF file of this machine's
// kind, or has none.
std::optional<std::string> read_build_id(const std::filesystem::path& library);

}  // namespace rlk::jit
