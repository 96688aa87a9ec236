// SPDX-License-Identifier: Apache-2.0
// Checks of boundaries on the host.
#include "templates/common/boundaries.hpp"

#include "runtime/read_values.hpp"

#include <vector>

namespace rlk::templates {

void expect_boundaries(const Given& given, long long end, long long least) {
  if (!given.tensor.present()) return;
  const std::vector<std::int64_t> values = read_integers(given.tensor);
  if (values.front() != 0) given.fail("to start at 0", std::to_string(values.front()));
  if (values.back() != end) {
    given.fail(fmt::format("to end at {}", end), std::to_string(values.back()));
  }
  for (std::size_t i = 1; i < values.size(); ++i) {
    if (values[i] - values[i - 1] >= least) continue;
    given.fail(least > 1   ? fmt::format("to increase by at least {}", least)
               : least > 0 ? "to increase"
                           : "not to decrease",
               fmt::format("{} after {}", values[i], values[i - 1]));
  }
}

}  // namespace rlk::templates
