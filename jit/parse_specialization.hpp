// SPDX-License-Identifier: Apache-2.0
// From a kernel's name back to its Specialization: the inverse of Specialization::text().
#pragma once

#include "jit/specialization.hpp"

#include <string_view>

namespace rlk::jit {

// "linear_logp.fwd[x=bf16 V=32000 D=1024]@sm_90a", as text() writes it. A constant that is left out
// is taken at run time. `ops` are those of this build. Throws InvalidArgument, which names the part
// that is wrong and what was expected there.
Specialization parse_specialization(std::string_view name, Ops ops);

}  // namespace rlk::jit
