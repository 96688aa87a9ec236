// SPDX-License-Identifier: Apache-2.0
// Takes a kernel's name apart and looks each part up.
#include "jit/parse_specialization.hpp"

#include "jit/op.hpp"
#include "runtime/error.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <string>
#include <vector>

namespace rlk::jit {
namespace {

constexpr std::string_view k_generic = "generic";

[[noreturn]] void fail(std::string_view part, const std::string& expected, std::string_view got) {
  throw InvalidArgument("kernel name: {}: expected {}, got \"{}\"", part, expected, got);
}

template <class Items, class Name>
std::string one_of(const Items& items, Name name) {
  std::vector<std::string> names;
  for (const auto& item : items) names.emplace_back(name(item));
  return fmt::format("{}", fmt::join(names, ", "));
}

// Neighbours of one label are shown as one.
std::vector<std::string_view> labels(std::span<const ConstantDef> constants) {
  std::vector<std::string_view> all;
  for (const ConstantDef& constant : constants) all.push_back(constant.label);
  all.erase(std::ranges::unique(all).begin(), all.end());
  return all;
}

std::vector<std::string_view> split(std::string_view text, char at) {
  std::vector<std::string_view> parts;
  for (std::size_t end = text.find(at); end != text.npos; end = text.find(at)) {
    parts.push_back(text.substr(0, end));
    text.remove_prefix(end + 1);
  }
  parts.push_back(text);
  return parts;
}

// A name cut at its punctuation.
struct Parts {
  std::string_view op, pass, constants, target;
};

Parts cut(std::string_view name) {
  const std::size_t open = name.find('[');
  const std::size_t close = name.rfind("]@");
  const std::size_t dot = name.substr(0, open).rfind('.');
  if (open == name.npos || close == name.npos || close < open || dot == name.npos) {
    fail("form", "op.pass[constants]@target", name);
  }
  return {name.substr(0, dot), name.substr(dot + 1, open - dot - 1),
          name.substr(open + 1, close - open - 1), name.substr(close + 2)};
}

const Op& find_op(std::string_view name, Ops ops) {
  const auto found = std::ranges::find(ops, name, [](const Op* op) { return op->name; });
  if (found == ops.end()) fail("op", one_of(ops, [](const Op* op) { return op->name; }), name);
  return **found;
}

Pass find_pass(std::string_view text) {
  for (const Pass pass : {Pass::fwd, Pass::bwd}) {
    if (name(pass) == text) return pass;
  }
  fail("pass", "fwd or bwd", text);
}

Target find_target(std::string_view text) {
  if (const auto target = target_named(text)) return *target;
  const auto target_name = [](Target target) { return rlk::name(target); };
  fail("target", one_of(cuda_targets(), target_name) + ", " + one_of(cpu_targets(), target_name),
       text);
}

std::int64_t parse_value(const ConstantDef& constant, std::string_view text) {
  if (constant.is_option() && text == k_any) return k_run_time;
  if (!constant.words.empty()) {
    const auto words = constant.words.subspan(constant.is_option() ? 1 : 0);
    const auto word = std::ranges::find(words, text);
    if (word == words.end()) {
      fail(constant.label, one_of(words, [](auto one) { return one; }), text);
    }
    return &*word - constant.words.data();
  }
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(text.begin(), text.end(), value);
  if (error != std::errc() || end != text.end() || value < 0) {
    fail(constant.label, "a number from 0 up", text);
  }
  return value;
}

// "tile=128x192" gives two constants, neighbours of one label; "V=7" gives one.
void parse_constant(std::string_view text, Specialization& spec) {
  const auto constants = spec.op->constants;
  const std::string_view label = text.substr(0, text.find('='));
  const auto first = std::ranges::find(constants, label, &ConstantDef::label);
  if (first == constants.end() || label.size() == text.size()) {
    fail("constant", fmt::format("{} = a value", fmt::join(labels(constants), ", ")), text);
  }
  const auto last =
      std::find_if(first, constants.end(), [&](const auto& one) { return one.label != label; });
  const auto num_values = static_cast<std::size_t>(last - first);
  const std::string_view given = text.substr(label.size() + 1);
  const auto values = num_values == 1 ? std::vector{given} : split(given, 'x');
  if (values.size() != num_values) {
    fail(label, fmt::format("{} values with an x between them", num_values), given);
  }
  const auto begin = static_cast<std::size_t>(first - constants.begin());
  for (std::size_t i = 0; i < num_values; ++i) {
    spec.values[begin + i] = parse_value(constants[begin + i], values[i]);
  }
}

}  // namespace

Specialization parse_specialization(std::string_view name, Ops ops) {
  const Parts parts = cut(name);
  Specialization spec{
      &find_op(parts.op, ops), find_pass(parts.pass), find_target(parts.target), {}};
  const auto words = split(parts.constants, ' ');
  const bool is_generic = std::ranges::find(words, k_generic) != words.end();
  for (std::size_t i = 0; i < spec.op->constants.size(); ++i) {
    spec.values[i] = spec.op->constants[i].is_option() && !is_generic ? 0 : k_run_time;
  }
  for (const std::string_view word : words) {
    if (!word.empty() && word != k_generic) parse_constant(word, spec);
  }
  for (std::size_t i = 0; i < spec.op->constants.size(); ++i) {
    const ConstantDef& constant = spec.op->constants[i];
    if (spec.values[i] == k_run_time && !constant.may_be_run_time) {
      fail(constant.label, "a value", "none");
    }
  }
  // Order, blanks, repetitions, the word "generic".
  if (const std::string canonical = spec.text(); canonical != name) fail("form", canonical, name);
  return spec;
}

}  // namespace rlk::jit
