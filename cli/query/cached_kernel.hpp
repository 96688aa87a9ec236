// SPDX-License-Identifier: Apache-2.0
// A cache entry with its metadata parsed: what list, show and path are about.
#pragma once

#include "cli/context.hpp"
#include "cli/text/json.hpp"
#include "jit/metadata.hpp"

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace rlk::cli {

// Enough of a key to name it in a cache of millions.
inline constexpr std::size_t k_shown_key_digits = 12;

struct CachedKernel {
  cache::ListedEntry entry;
  jit::EntryMetadata metadata;  // what listed_metadata() reads; made when the file was, if untold

  const std::string& name() const { return metadata.name; }  // empty if the metadata do not tell
};

// All entries of all layers, in the order of layers, then of names.
std::vector<CachedKernel> all_kernels(const Context& context);

struct ListFilter {
  std::string name_part;
  bool no_builtin = false;
};

// Those of them that the filter lets through.
std::vector<CachedKernel> all_kernels(const Context& context, const ListFilter& filter);

// Without its folder.
std::string file_name(const CachedKernel& kernel);

// What every command tells of an entry by --json.
Json json_of(const Context& context, const CachedKernel& kernel);

// The one that the word means: a name, a file, `<key>.<compiler>` or its front, or a part of a
// name. Nothing after telling the context's err that there is none, or which ones there are.
std::optional<CachedKernel> find_kernel(const Context& context, const std::string& word);

// The kernels that the word may mean: those of the first rule above that any fits, of all layers.
std::vector<const CachedKernel*> kernels_named(const std::vector<CachedKernel>& kernels,
                                               const std::string& word);

// To the context's err: that none is of this word, or which ones are.
void tell_missing(const Context& context, const std::string& word);
void tell_candidates(const Context& context, const std::string& word,
                     const std::vector<const CachedKernel*>& found);

// The oldest CUDA driver that takes the code, as the driver counts versions: 12080 is 12.8; nothing
// for a CPU's. A driver takes what any NVRTC of its major made, if it knows the card, and the PTX
// of compute_80 is old enough for all.
std::optional<int> driver_needed(const CachedKernel& kernel);
std::string cuda_text(int version);  // "12.8"

// What is wrong with the entry, in parentheses, where it has no name to show.
std::string shown_name(const CachedKernel& kernel);

}  // namespace rlk::cli
