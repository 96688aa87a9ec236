// SPDX-License-Identifier: Apache-2.0
// Checks of boundaries on the host.
#include "templates/common/boundaries.hpp"

#include "runtime/error.hpp"

#include <string>

namespace rlk::templates {

void expect_boundaries(const Dense<long long>& starts, const char* argument, long long end,
                       long long least) {
  if (starts.data == nullptr) return;
  const auto& values = starts.copy;
  if (values.front() != 0) {
    throw InvalidArgument("{}: expected to start at 0, got {}", argument, values.front());
  }
  if (values.back() != end) {
    throw InvalidArgument("{}: expected to end at {}, got {}", argument, end, values.back());
  }
  for (std::size_t i = 1; i < values.size(); ++i) {
    if (values[i] - values[i - 1] >= least) continue;
    const std::string step = least > 1   ? "to increase by at least " + std::to_string(least)
                             : least > 0 ? "to increase"
                                         : "not to decrease";
    throw InvalidArgument("{}: expected {}, got {} after {}", argument, step, values[i],
                          values[i - 1]);
  }
}

}  // namespace rlk::templates
