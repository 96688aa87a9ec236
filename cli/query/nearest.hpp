// SPDX-License-Identifier: Apache-2.0
// Of a key that no file has: the entry that is nearest to it, and where it differs.
#pragma once

#include "cache/key.hpp"
#include "cli/query/cached_kernel.hpp"

#include <optional>
#include <string>
#include <vector>

namespace rlk::cli {

// Where the nearest entry of another key first differs.
struct Difference {
  const CachedKernel* kernel = nullptr;
  std::string field;
  std::string wanted, found;  // "" where the key has no such field
};

// Of the key's own field order. Nothing where the keys are equal or the entry's is none.
std::optional<Difference> difference(const cache::Key& key, const CachedKernel& kernel);

// The entry of the same op that shares most: the same specialization first, then pass and target,
// then the number of equal fields, then of equal constants, then the last used. nullptr: none.
const CachedKernel* nearest(const cache::Key& key, const std::vector<CachedKernel>& kernels);

}  // namespace rlk::cli
