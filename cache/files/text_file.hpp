// SPDX-License-Identifier: Apache-2.0
// A text file that is read whole, whoever wrote it: never hangs on a FIFO, takes no endless one.
#pragma once

#include "cache/files/file_system.hpp"

#include <cstdint>
#include <string>

namespace rlk::cache {

struct TextRead {
  std::string text;
  bool is_absent = false;
  std::string problem;  // why there is no text, in words; empty if there is, or no file
};

TextRead read_text_file(FileSystem& files, const std::string& path, std::uint64_t most_bytes);

}  // namespace rlk::cache
