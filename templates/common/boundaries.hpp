// SPDX-License-Identifier: Apache-2.0
// Boundaries of groups or packed sequences, as given on the host.
#pragma once

#include "templates/common/expect.hpp"

namespace rlk::templates {

// Starts at 0, ends at `end`, steps by at least `least`. Absent boundaries pass. Throws
// InvalidArgument.
void expect_boundaries(const Given& given, long long end, long long least);

}  // namespace rlk::templates
