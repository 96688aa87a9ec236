// SPDX-License-Identifier: Apache-2.0
// What calls of an op take, declared once: from an op's table of parameters follow the binding from
// Python, the checks of plain numbers and their messages, constants of a specialization, words of a
// kernel's name, keys of a model's string, and what rlk-check varies.
#pragma once

#include "runtime/tensor.hpp"

#include <array>
#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <string_view>

namespace rlk::jit {

struct OpCall;

// In the text form: an option that a kernel, not generic in all else, takes as an argument.
inline constexpr std::string_view k_any = "any";

// One constant of a template. Two neighbours of one label are shown as one: tile=14x2.
struct ConstantDef {
  std::string_view label;                        // in the text form: "V"
  const char* symbol = nullptr;                  // in the template: "kV"
  std::span<const std::string_view> words = {};  // names of the values 0, 1, ...; empty: a number
  bool may_be_run_time = true;                   // false: constant in the generic variant too

  // An option: off (0) is no word and is left out of the text form.
  constexpr bool is_option() const { return !words.empty() && words[0].empty(); }
};

// One number per row, a tensor [...] of a floating type; where that is absent, one for all.
struct NumberPerRow : Tensor {
  double value = 1.0;
  NumberPerRow& operator=(const Tensor& tensor) {
    static_cast<Tensor&>(*this) = tensor;
    return *this;
  }
};

// A count over all parts of a batch: a number above 0, an int64 tensor of one element, or neither.
struct Count : Tensor {
  std::int64_t value = 0;  // 0: none
  Count& operator=(const Tensor& tensor) {
    static_cast<Tensor&>(*this) = tensor;
    return *this;
  }
};

// A word of an option, and the code that kernels know it by.
struct Word {
  std::string_view word;
  std::int64_t code;
};

// What Python gives, and the type of the call's field.
enum class Kind : std::uint8_t {
  tensor,           // a tensor, or None where it may be absent: Tensor
  number,           // a number: double
  optional_number,  // a number or None: std::optional<double>
  number_per_row,   // a number, or a floating tensor [...]: NumberPerRow
  optional_index,   // an int of 64 bits or None: std::optional<std::int64_t>
  flag,             // True or False: bool
  word,   // one of the parameter's words, or None where off is one: std::int64_t, its code
  count,  // an int above 0, a tensor, or None: Count
};
std::string_view name(Kind kind);

// The numbers that a parameter takes.
struct Range {
  std::string_view expected;  // in messages
  bool (*holds)(double);
};

struct Parameter {
  std::string_view name;  // in Python, in messages and in a model's string
  Kind kind;
  void* (*field)(OpCall&);          // of the call
  double by_default = 0;            // number, number_per_row (changes nothing), optional_index
  const Range* range = nullptr;     // kinds with a number
  ConstantDef constant = {};        // whether a call has the option; no symbol: it is no constant
  bool (*has)(const OpCall&) = {};  // in place of what `kind` says: the call has the option
  std::span<const Word> words = {};
};

// `by_default` of an optional_index that is None.
inline constexpr double k_no_index = std::numeric_limits<double>::quiet_NaN();

// The field of a call: field_of<&LinearLogpCall::hidden>.
template <auto member>
struct FieldOf;
template <class Call, class Field, Field Call::* member>
struct FieldOf<member> {
  static void* get(OpCall& call) { return &(static_cast<Call&>(call).*member); }
};
template <auto member>
inline constexpr auto field_of = &FieldOf<member>::get;

// Tables of several ops' parameters, or constants, in one.
template <class Item, std::size_t... sizes>
constexpr auto joined(const Item (&... parts)[sizes]) {
  std::array<Item, (sizes + ...)> all{};
  std::size_t next = 0;
  const auto append = [&](const auto& part) {
    for (const Item& item : part) all[next++] = item;
  };
  (append(parts), ...);
  return all;
}

// The words of an option as those of its constant, by code. Code 0 has none where it is off, or
// what the text form leaves out (`hides_first`).
template <const auto& words, bool hides_first = true>
inline constexpr auto constant_words = [] {
  constexpr std::size_t size = [] {
    std::int64_t most = 0;
    for (const Word& word : words) most = word.code > most ? word.code : most;
    return static_cast<std::size_t>(most) + 1;
  }();
  std::array<std::string_view, size> by_code{};
  for (const auto& [word, code] : words) {
    std::string_view& place = by_code.at(static_cast<std::size_t>(code));
    if (!place.empty()) throw "two words of one code";
    place = word;
  }
  if (hides_first) by_code[0] = "";
  return by_code;
}();

// Whether the call has the option: the value of its constant, but of a word, which is its code.
bool has_option(const Parameter& parameter, const OpCall& call);

// The call's numbers against the ranges of its op's parameters. Throws InvalidArgument.
void check_numbers(const OpCall& call);

// Sets a field of a kind with a number. Throws InvalidArgument.
void set_number(const Parameter& parameter, OpCall& call, double value);

// Null where the op has none of this name.
const Parameter* find_parameter(std::span<const Parameter> parameters, std::string_view name);

}  // namespace rlk::jit
