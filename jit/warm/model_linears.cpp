// SPDX-License-Identifier: Apache-2.0
// Sizes of layers by the keys that Hugging Face's configurations share.
#include "jit/warm/model_linears.hpp"

#include "jit/warm/model_head.hpp"

#include <algorithm>

namespace rlk::jit {
namespace {

// 0 where there is none.
std::int64_t size_of(const nlohmann::json& text, const char* name) {
  const auto found = text.find(name);
  if (found == text.end() || !found->is_number_integer()) return 0;
  return std::clamp<std::int64_t>(found->get<std::int64_t>(), 0, k_most_hidden);
}

}  // namespace

std::vector<LinearShape> read_linears(const ConfigFile& file) {
  const nlohmann::json& text = text_part(file);
  const std::int64_t hidden = size_of(text, "hidden_size");
  const std::int64_t heads = size_of(text, "num_attention_heads");
  const std::int64_t given = size_of(text, "num_key_value_heads");
  const std::int64_t kv_heads = given > 0 ? given : heads;
  const std::int64_t of_head = size_of(text, "head_dim");
  const std::int64_t head_dim = of_head > 0 ? of_head : heads > 0 ? hidden / heads : 0;
  const std::int64_t inner = size_of(text, "intermediate_size");
  const LinearShape all[] = {
      {hidden, heads * head_dim},     // queries
      {hidden, kv_heads * head_dim},  // keys, values
      {heads * head_dim, hidden},     // what attention gives
      {hidden, inner},                // the MLP's gate and up
      {inner, hidden},                // its down
  };
  std::vector<LinearShape> linears;
  for (const LinearShape& one : all) {
    const bool is_known = one.inputs > 0 && one.outputs > 0;
    if (is_known && std::ranges::find(linears, one) == linears.end()) linears.push_back(one);
  }
  return linears;
}

}  // namespace rlk::jit
