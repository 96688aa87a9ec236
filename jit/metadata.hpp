// SPDX-License-Identifier: Apache-2.0
// The JSON that a cache entry carries about its kernel; fields in docs/cache-format.md.
#pragma once

#include "jit/compiler.hpp"
#include "jit/specialization.hpp"

#include <string>

namespace rlk::jit {

std::string metadata(const Specialization& spec, const CompileRequest& request,
                     const CompileStats& stats, const std::string& compiler);

// Who made an entry, by its metadata; "an unknown compiler" where they do not tell.
std::string compiler_named(const std::string& metadata);

}  // namespace rlk::jit
