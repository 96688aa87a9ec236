// SPDX-License-Identifier: Apache-2.0
// Boundaries of groups or packed sequences, as given on the host.
#pragma once

#include "templates/common/dense.hpp"

namespace rlk::templates {

// Starts at 0, ends at `end`, steps by at least `least`. Absent boundaries pass. `argument` reads
// "op: argument"; throws InvalidArgument.
void expect_boundaries(const Dense<long long>& starts, const char* argument, long long end,
                       long long least);

}  // namespace rlk::templates
