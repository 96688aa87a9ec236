// SPDX-License-Identifier: Apache-2.0
// Compares the fields of keys.
#include "cli/query/nearest.hpp"

#include <algorithm>
#include <sstream>
#include <tuple>

namespace rlk::cli {
namespace {

using Fields = std::vector<cache::KeyField>;

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
