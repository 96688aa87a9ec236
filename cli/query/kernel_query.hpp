// SPDX-License-Identifier: Apache-2.0
// The kernel that explain and show --source are asked for: it need not be in any layer.
#pragma once

#include "cli/query/cached_kernel.hpp"
#include "jit/specialization.hpp"

#include <optional>
#include <string>

namespace rlk::cli {

struct KernelQuery {
  jit::Specialization spec;
  std::optional<CachedKernel> kernel =
      {};  // the entry that the word named, where it is no whole name
};

// A kernel's whole name, or whatever find_kernel takes for one entry. Nothing after telling the
// context's err what is wrong with it.
std::optional<KernelQuery> parse_kernel_query(const Context& context, const std::string& word);

}  // namespace rlk::cli
