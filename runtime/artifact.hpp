// SPDX-License-Identifier: Apache-2.0
// What a compiler makes and a loader takes: code bytes and what is known about them.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace rlk {

struct Artifact {
  std::vector<std::byte> code;
  std::string metadata;  // JSON, as it stands in the cache entry
};

}  // namespace rlk
