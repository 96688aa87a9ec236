// SPDX-License-Identifier: Apache-2.0
// Reads "V=..,D=..", and hands on a configuration.
#include "jit/warm/model_shape.hpp"

#include "jit/op.hpp"
#include "jit/warm/config_file.hpp"
#include "jit/warm/model_head.hpp"
#include "jit/warm/model_linears.hpp"
#include "runtime/error.hpp"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <string_view>
#include <utility>

namespace rlk::jit {
namespace {

// The value of "name=value", for another name or anything but a value above 0 nothing.
template <class Number>
std::optional<Number> value_of(std::string_view part, std::string_view name) {
  if (!part.starts_with(name)) return std::nullopt;
  Number number = 0;
  const auto [end, error] = std::from_chars(part.data() + name.size(), part.end(), number);
  if (error != std::errc{} || end != part.end()) return std::nullopt;
  return number;
}

// One part of "V=128256,D=4096,softcap=30"; false where it is none, or one too many.
bool take_part(std::string_view part, std::span<const Op* const> ops, ModelShape& shape) {
  if (const auto vocab = value_of<std::int64_t>(part, "V=")) {
    return std::exchange(shape.vocab, *vocab) == 0 && *vocab >= 1 && *vocab <= k_most_vocab;
  }
  if (const auto hidden = value_of<std::int64_t>(part, "D=")) {
    return std::exchange(shape.hidden, *hidden) == 0 && *hidden >= 1 && *hidden <= k_most_hidden;
  }
  const auto name = part.substr(0, part.find('='));
  const auto parameters = model_parameters(ops);
  const auto found = std::ranges::find(parameters, name, &Parameter::name);
  if (found == parameters.end()) return false;
  const Parameter* const parameter = *found;
  const auto number = value_of<double>(part, std::string(name) + "=");
  if (!number || !std::isfinite(*number)) return false;
  if (!shape.numbers.try_emplace(std::string(name), *number).second) return false;
  // The default changes nothing: kernels are those of calls that do not pass it.
  if (parameter->kind == Kind::number && *number == parameter->by_default) {
    shape.numbers.erase(std::string(name));
  }
  return true;
}

// "V=128256,D=4096" in any order.
std::optional<ModelShape> parse_sizes(const std::string& word, std::span<const Op* const> ops) {
  if (!word.starts_with("V=") && !word.starts_with("D=")) return std::nullopt;
  ModelShape shape;
  for (std::size_t begin = 0; begin <= word.size();) {
    const auto part = std::string_view(word).substr(begin, word.find(',', begin) - begin);
    begin += part.size() + 1;
    if (!take_part(part, ops, shape)) {
      throw InvalidArgument("model: {}: expected V=128256,D=4096, got \"{}\"", word, part);
    }
  }
  if (shape.vocab == 0 || shape.hidden == 0) {
    throw InvalidArgument("model: {}: expected V=128256,D=4096, {} is missing", word,
                          shape.vocab == 0 ? "V" : "D");
  }
  return shape;
}

// "K=4096,N=12288" in any order.
std::optional<ModelShape> parse_linear(const std::string& word) {
  if (!word.starts_with("K=") && !word.starts_with("N=")) return std::nullopt;
  const std::size_t comma = std::min(word.find(','), word.size());
  const auto first = std::string_view(word).substr(0, comma);
  const auto second = std::string_view(word).substr(std::min(comma + 1, word.size()));
  const bool is_turned = word.starts_with("N=");
  const auto inputs = value_of<std::int64_t>(is_turned ? second : first, "K=");
  const auto outputs = value_of<std::int64_t>(is_turned ? first : second, "N=");
  const auto is_size = [](const std::optional<std::int64_t>& size) {
    return size && *size >= 1 && *size <= k_most_vocab;
  };
  if (!is_size(inputs) || !is_size(outputs)) {
    throw InvalidArgument("model: {}: expected K=4096,N=12288, got \"{}\"", word, word);
  }
  ModelShape shape;
  shape.linears = {{*inputs, *outputs}};
  return shape;
}

ModelShape read_whole_shape(const std::string& word, std::span<const Op* const> ops,
                            const ShapeOptions& options) {
  if (auto shape = parse_linear(word)) return *shape;
  if (auto shape = parse_sizes(word, ops)) {
    if (options.vocab) shape->vocab = *options.vocab;
    return *shape;
  }
  const ConfigFile file = read_config_file(word);
  ModelShape shape = read_head(file, options.vocab);
  if (options.linears) shape.linears = read_linears(file);
  return shape;
}

}  // namespace

std::vector<const Parameter*> model_parameters(std::span<const Op* const> ops) {
  std::vector<const Parameter*> all;
  for (const Op* op : ops) {
    for (const Parameter& parameter : op->parameters) {
      const bool is_given = parameter.range != nullptr && parameter.constant.symbol != nullptr;
      if (is_given && std::ranges::find(all, parameter.name, &Parameter::name) == all.end()) {
        all.push_back(&parameter);
      }
    }
  }
  return all;
}

ModelShape read_model_shape(const std::string& word, std::span<const Op* const> ops,
                            const ShapeOptions& options) {
  ModelShape shape = read_whole_shape(word, ops, options);
  if (shape.vocab % options.num_shards != 0) {
    throw InvalidArgument(
        "model: {}: expected a vocabulary that {} shards divide, got {}; give the padded size by "
        "--vocab",
        word, options.num_shards, shape.vocab);
  }
  for (const Parameter* parameter : model_parameters(ops)) {
    const auto given = shape.numbers.find(parameter->name);
    if (given == shape.numbers.end() || parameter->range->holds(given->second)) continue;
    throw InvalidArgument("model: {}: {}: expected {}, got {}", word, parameter->name,
                          parameter->range->expected, given->second);
  }
  shape.vocab /= options.num_shards;
  shape.num_shards = options.num_shards;
  shape.entropy = options.entropy;
  shape.stats = options.stats;
  return shape;
}

}  // namespace rlk::jit
