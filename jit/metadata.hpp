// SPDX-License-Identifier: Apache-2.0
// The JSON that a cache entry carries about its kernel; fields in docs/cache-format.md.
#pragma once

#include "jit/compiler.hpp"
#include "jit/specialization.hpp"

#include <string>

namespace rlk::jit {

std::string metadata(const Specialization& spec, const CompileRequest& request,
                     const CompileStats& stats, const std::string& compiler);

}  // namespace rlk::jit
