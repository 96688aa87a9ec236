// SPDX-License-Identifier: Apache-2.0
// Follows the rules of DiskStore::get over a listing; a test holds the two together.
#include "cli/query/trace.hpp"

#include "cache/entry_name.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <sstream>
#include <tuple>

namespace rlk::cli {
namespace {

using Fields = std::vector<cache::KeyField>;

// The exact name first, then the newest.
void sort_as_get_does(std::vector<const CachedKernel*>& found, const std::string& exact) {
  const auto rank = [&](const CachedKernel* kernel) {
    const auto stat =
        cache::posix_file_system().stat(kernel->entry.path, cache::Links::follow).value;
    return std::tuple(!exact.empty() && kernel->entry.path.ends_with('/' + exact), stat.modified_s,
                      stat.modified_ns, kernel->entry.path);
  };
  std::ranges::sort(found, std::greater<>(), rank);
}

// What a get finds wrong with a file when it reads it whole.
std::string problem_of(cache::DiskStore& store, const CachedKernel& kernel) {
  const auto read = store.read(kernel.entry);
  return read.status == cache::ReadStatus::absent ? "vanished" : read.problem;
}

std::string value_of(const Fields& fields, std::string_view tag) {
  const auto field = std::ranges::find(fields, tag, &cache::KeyField::tag);
  return field == fields.end() ? "" : field->value;
}

bool is_equal(const Fields& a, const Fields& b, std::string_view tag) {
  return value_of(a, tag) == value_of(b, tag);
}

std::size_t num_equal(const Fields& a, const Fields& b) {
  std::size_t count = 0;
  for (std::size_t i = 0; i < std::min(a.size(), b.size()); ++i) count += a[i] == b[i] ? 1 : 0;
  return count;
}

// "[x=bf16 V=10 D=20]" and "[x=bf16 generic]" have one word in common.
std::size_t num_equal_words(const std::string& a, const std::string& b) {
  std::istringstream a_words(a);
  std::istringstream b_words(b);
  std::size_t count = 0;
  std::string a_word;
  std::string b_word;
  while (a_words >> a_word && b_words >> b_word) count += a_word == b_word ? 1 : 0;
  return count;
}

}  // namespace

std::vector<Candidate> trace_get(const Context& context, const std::vector<CachedKernel>& kernels,
                                 const cache::Key& key, const std::string& compiler) {
  const std::string digest = key.digest();
  const std::string exact = compiler.empty() ? "" : cache::entry_file_name(digest, compiler);
  cache::DiskStore store(layers_of(context).options);
  std::vector<Candidate> candidates;
  for (const auto& state : store.layers()) {
    if (state.layer.read_write && !state.problem.empty()) {
      candidates.push_back({state.layer.folder, state.layer, "", state.problem});
      continue;
    }
    std::vector<const CachedKernel*> found;
    for (const CachedKernel& kernel : kernels) {
      const bool is_here = kernel.entry.layer.folder == state.layer.folder;
      if (is_here && kernel.entry.digest == digest) found.push_back(&kernel);
    }
    sort_as_get_does(found, exact);
    for (const CachedKernel* kernel : found) {
      const cache::ListedEntry& entry = kernel->entry;
      const bool is_exact = entry.path.ends_with('/' + exact);
      const bool is_foreign = entry.layer.read_write && !exact.empty() && !is_exact;
      candidates.push_back({entry.path, entry.layer, entry.compiler,
                            is_foreign ? fmt::format("made by {}; the read-write layer wants {}",
                                                     entry.compiler, compiler)
                                       : problem_of(store, *kernel)});
      if (candidates.back().problem.empty()) return candidates;
    }
  }
  return candidates;
}

bool is_hit(const std::vector<Candidate>& candidates) {
  return !candidates.empty() && candidates.back().problem.empty();
}

std::optional<Difference> difference(const cache::Key& key, const CachedKernel& kernel) {
  const Fields wanted = cache::decode_key(key.bytes).value_or(Fields());
  const auto found = cache::decode_key(kernel.entry.key);
  if (!found || found->empty()) return std::nullopt;
  for (std::size_t i = 0; i < std::max(wanted.size(), found->size()); ++i) {
    const bool is_wanted = i < wanted.size();
    const bool is_there = i < found->size();
    if (is_wanted && is_there && wanted[i] == (*found)[i]) continue;
    const bool is_same_tag = is_wanted && is_there && wanted[i].tag == (*found)[i].tag;
    return Difference{&kernel, is_wanted ? wanted[i].tag : (*found)[i].tag,
                      is_wanted ? wanted[i].value : "",
                      is_same_tag || !is_wanted ? (*found)[i].value : ""};
  }
  return std::nullopt;
}

const CachedKernel* nearest(const cache::Key& key, const std::vector<CachedKernel>& kernels) {
  const Fields wanted = cache::decode_key(key.bytes).value_or(Fields());
  const CachedKernel* best = nullptr;
  using Rank = std::tuple<bool, bool, std::size_t, std::size_t, std::int64_t>;
  Rank best_rank;
  for (const CachedKernel& kernel : kernels) {
    const auto found = cache::decode_key(kernel.entry.key);
    if (!found || !is_equal(wanted, *found, "op")) continue;
    const Rank rank{
        is_equal(wanted, *found, "specialization"),
        is_equal(wanted, *found, "pass") && is_equal(wanted, *found, "target"),
        num_equal(wanted, *found),
        num_equal_words(value_of(wanted, "specialization"), value_of(*found, "specialization")),
        kernel.entry.modified_s};
    if (best != nullptr && rank <= best_rank) continue;
    best = &kernel;
    best_rank = rank;
  }
  return best;
}

}  // namespace rlk::cli
