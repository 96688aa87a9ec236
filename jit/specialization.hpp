// SPDX-License-Identifier: Apache-2.0
// Which variant of which kernel: a value, compared and hashed on every call without allocation.
#pragma once

#include "runtime/loaded_kernel.hpp"

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace rlk::jit {

struct Op;
using Ops = std::span<const Op* const>;

enum class Pass : std::uint8_t { fwd, bwd };
inline const char* name(Pass pass) { return pass == Pass::fwd ? "fwd" : "bwd"; }

inline constexpr std::int64_t k_run_time = -1;  // the kernel takes this one as an argument

struct Specialization {
  const Op* op = nullptr;
  Pass pass = Pass::fwd;
  Target target = Target::x86_64_v2;
  // In the order of op->constants; those past its end stay 0.
  std::array<std::int64_t, k_max_constants> values{};

  bool operator==(const Specialization&) const = default;
  std::size_t hash() const;
  // That of the constant of this label; the op has one.
  std::int64_t value_of(std::string_view label) const;
  bool is_generic() const;
  // The same kernel with every constant that may be an argument taken as one.
  Specialization generic() const;
  // The kernel's name everywhere: "linear_logp.fwd[x=bf16 V=32000 D=1024 tile=14x2]@x86-64-v4".
  std::string text() const;
};

struct SpecializationHash {
  std::size_t operator()(const Specialization& spec) const { return spec.hash(); }
};

}  // namespace rlk::jit
