// SPDX-License-Identifier: Apache-2.0
// What a get of a key would find, file by file, and why each is taken or not.
#pragma once

#include "cache/key.hpp"
#include "cli/query/cached_kernel.hpp"

#include <optional>
#include <string>
#include <vector>

namespace rlk::cli {

// A file of the key, or a folder that is not looked into.
struct Candidate {
  std::string path;
  cache::Layer layer;
  std::string compiler = {};
  std::string problem = {};  // why a get passes it over; empty: a get gives this one
};

// In the order of a get, up to the one that it gives. `kernels` are all entries of all layers;
// `compiler` is what the get asks for, "" for any.
std::vector<Candidate> trace_get(const Context& context, const std::vector<CachedKernel>& kernels,
                                 const cache::Key& key, const std::string& compiler);

bool is_hit(const std::vector<Candidate>& candidates);

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
