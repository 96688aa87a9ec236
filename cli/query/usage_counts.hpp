// SPDX-License-Identifier: Apache-2.0
// What has become of one kernel's first calls, over all processes.
#pragma once

#include "cache/usage.hpp"

#include <algorithm>
#include <cstdint>
#include <string>

namespace rlk::cli {

struct Counts {
  std::uint64_t hits = 0, compiles = 0, failed = 0, fallbacks = 0;
  std::uint64_t compile_ms = 0;
  std::int64_t last_used_s = 0;

  void add(const cache::Usage& usage) {
    switch (usage.event) {
      case cache::UsageEvent::hit:
        hits += usage.count;
        break;
      case cache::UsageEvent::compiled:
        compiles += usage.count;
        compile_ms += usage.ms;
        break;
      case cache::UsageEvent::failed:
        failed += usage.count;
        break;
      case cache::UsageEvent::fallback:
        fallbacks += usage.count;
        break;
    }
    last_used_s = std::max(last_used_s, usage.time_s);
  }

  // All but the hits are what a cache that holds the kernel would have spared.
  std::uint64_t num_events() const { return hits + compiles + failed + fallbacks; }
};

// By its name: loads of a generic kernel in the place of a specialized one are no success.
inline bool is_generic(const std::string& kernel) {
  return kernel.find(" generic]@") != std::string::npos;
}

}  // namespace rlk::cli
