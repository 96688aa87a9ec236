// SPDX-License-Identifier: Apache-2.0
// Code in memory, ready to launch: the entry points of one artifact, in the op's order.
#pragma once

#include "runtime/target.hpp"

#include <array>
#include <cstdint>
#include <memory>
#include <string>

namespace rlk {

inline constexpr int k_max_entries = 12;
inline constexpr int k_max_constants = 12;

struct LoadedKernel {
  std::string name;  // the Specialization's text
  Target target{};
  std::array<std::int64_t, k_max_constants> constants{};  // of the op, in its order; -1: run time
  std::array<void*, k_max_entries> entries{};
  std::shared_ptr<const void> image;  // keeps the code mapped
};

}  // namespace rlk
