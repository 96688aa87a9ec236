// SPDX-License-Identifier: Apache-2.0
// What has become of the kernels that processes asked for, as lines of text. docs/cache-format.md
// repeats this grammar.
//
//   usage = *line
//   line  = version SP event SP count SP ms SP time SP kernel LF
//   version = "1"
//   event   = "hit" | "compiled" | "failed" | "fallback"
//   count   = digits      how many events the line stands for
//   ms      = digits      of all of them together: time to compile
//   time    = digits      of the last one, seconds since 1970
//   kernel  = the name, of 1 to 1024 bytes, no control bytes
//
// A line of another form is left out: two machines may append at once over a network.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace rlk::cache {

enum class UsageEvent : std::uint8_t {
  hit,       // a process loaded the kernel from a layer
  compiled,  // no layer had it: compiled
  failed,    // the compiler refused it
  fallback,  // the generic kernel ran in its place
};

std::string_view name(UsageEvent event);

struct Usage {
  UsageEvent event = UsageEvent::hit;
  std::string kernel;
  std::uint64_t count = 1;
  std::uint64_t ms = 0;
  std::int64_t time_s = 0;

  bool operator==(const Usage&) const = default;
};

// "" for a kernel whose name no line can hold.
std::string usage_line(const Usage& usage);

// One sum a (kernel, event), in this order. Safe for any bytes.
std::vector<Usage> sum_usage(std::string_view text);

// The lines of the sums, the longest unused left out where they take more than `most_bytes`.
std::string usage_text(std::vector<Usage> sums, std::size_t most_bytes);

}  // namespace rlk::cache
