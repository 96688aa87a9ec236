// SPDX-License-Identifier: Apache-2.0
// Reads and writes the fields of a call by its op's table of parameters.
#include "jit/parameter.hpp"

#include "jit/op.hpp"
#include "runtime/error.hpp"

#include <algorithm>

namespace rlk::jit {
namespace {

template <class Field>
const Field& field(const Parameter& parameter, const OpCall& call) {
  return *static_cast<const Field*>(parameter.field(const_cast<OpCall&>(call)));
}

void check_number(const Parameter& parameter, const OpCall& call, double number) {
  if (parameter.range == nullptr || parameter.range->holds(number)) return;
  throw InvalidArgument(Fault{std::string(call.op->name), std::string(parameter.name),
                              std::string(parameter.range->expected), fmt::format("{}", number)});
}

}  // namespace

std::string_view name(Kind kind) {
  constexpr std::string_view names[] = {"tensor",         "number",         "optional_number",
                                        "number_per_row", "optional_index", "flag",
                                        "word",           "count"};
  return names[static_cast<int>(kind)];
}

bool has_option(const Parameter& parameter, const OpCall& call) {
  if (parameter.has != nullptr) return parameter.has(call);
  switch (parameter.kind) {
    case Kind::tensor:
      return field<Tensor>(parameter, call).present();
    case Kind::number:
      return field<double>(parameter, call) != parameter.by_default;
    case Kind::optional_number:
      return field<std::optional<double>>(parameter, call).has_value();
    case Kind::number_per_row: {
      const auto& number = field<NumberPerRow>(parameter, call);
      return number.present() || number.value != parameter.by_default;
    }
    case Kind::optional_index:
      return field<std::optional<std::int64_t>>(parameter, call).has_value();
    case Kind::word:
      return field<std::int64_t>(parameter, call) != 0;
    case Kind::count: {
      const auto& count = field<Count>(parameter, call);
      return count.present() || count.value != 0;
    }
    case Kind::flag:
      break;
  }
  return field<bool>(parameter, call);
}

void check_numbers(const OpCall& call) {
  for (const Parameter& parameter : call.op->parameters) {
    if (parameter.kind == Kind::number) {
      check_number(parameter, call, field<double>(parameter, call));
    } else if (parameter.kind == Kind::optional_number) {
      const auto& number = field<std::optional<double>>(parameter, call);
      if (number) check_number(parameter, call, *number);
    } else if (parameter.kind == Kind::number_per_row) {
      const auto& number = field<NumberPerRow>(parameter, call);
      if (!number.present()) check_number(parameter, call, number.value);
    }
  }
}

void set_number(const Parameter& parameter, OpCall& call, double value) {
  check_number(parameter, call, value);
  void* const field = parameter.field(call);
  if (parameter.kind == Kind::number) *static_cast<double*>(field) = value;
  if (parameter.kind == Kind::optional_number) *static_cast<std::optional<double>*>(field) = value;
  if (parameter.kind == Kind::number_per_row) static_cast<NumberPerRow*>(field)->value = value;
}

const Parameter* find_parameter(std::span<const Parameter> parameters, std::string_view name) {
  const auto found = std::ranges::find(parameters, name, &Parameter::name);
  return found == parameters.end() ? nullptr : &*found;
}

}  // namespace rlk::jit
