// SPDX-License-Identifier: Apache-2.0
// Text form, hash and generic form of a Specialization.
#include "jit/specialization.hpp"

#include "jit/op.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace rlk::jit {

std::size_t Specialization::hash() const {
  // Multiply and shift over the words (the finalizer of SplitMix64): this runs on every call.
  std::uint64_t state = reinterpret_cast<std::uintptr_t>(op) ^
                        (static_cast<std::uint64_t>(pass) << 8) ^
                        static_cast<std::uint64_t>(target);
  for (auto value : values) {
    state = (state ^ static_cast<std::uint64_t>(value)) * 0xbf58476d1ce4e5b9u;
    state ^= state >> 31;
  }
  return state;
}

std::int64_t Specialization::value_of(std::string_view label) const {
  return values[std::ranges::find(op->constants, label, &ConstantDef::label) -
                op->constants.begin()];
}

bool Specialization::is_generic() const { return *this == generic(); }

Specialization Specialization::generic() const {
  Specialization result = *this;
  for (std::size_t i = 0; i < op->constants.size(); ++i) {
    if (op->constants[i].may_be_run_time) result.values[i] = k_run_time;
  }
  return result;
}

std::string Specialization::text() const {
  std::string constants;
  const bool generic = is_generic();
  bool any_run_time_left = false;
  for (std::size_t i = 0; i < op->constants.size(); ++i) {
    const auto& constant = op->constants[i];
    const bool is_run_time = values[i] == k_run_time;
    any_run_time_left |= is_run_time;
    // Nothing said is run time of a size, off of an option.
    if (constant.is_option() ? values[i] == 0 || (is_run_time && generic) : is_run_time) continue;
    const bool joined = i > 0 && op->constants[i - 1].label == constant.label;
    constants += joined ? "x" : fmt::format("{}{}=", constants.empty() ? "" : " ", constant.label);
    constants += is_run_time              ? std::string(k_any)
                 : constant.words.empty() ? fmt::format("{}", values[i])
                                          : std::string(constant.words[values[i]]);
  }
  return fmt::format("{}.{}[{}{}]@{}", op->name, name(pass), constants,
                     any_run_time_left && generic ? " generic" : "", rlk::name(target));
}

}  // namespace rlk::jit
