// SPDX-License-Identifier: Apache-2.0
// Which of an op's tiles a call takes. Tiles give the same bits, so this is a matter of speed
// alone.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace rlk::jit {

// Most rows of each class of calls but the last: the rows of a call enter a kernel by no more.
inline constexpr std::array<std::int64_t, 2> k_row_class_limits = {64, 256};
inline constexpr std::size_t k_num_row_classes = k_row_class_limits.size() + 1;

constexpr std::size_t row_class(std::int64_t num_rows) {
  std::size_t of_rows = 0;
  while (of_rows < k_row_class_limits.size() && num_rows > k_row_class_limits[of_rows]) ++of_rows;
  return of_rows;
}

// Of a pass of an op on a device, a row class each: an index into Op::tile_names, or the op's own
// choice.
struct Tuning {
  static constexpr std::int8_t k_own = -1;
  std::array<std::int8_t, k_num_row_classes> tiles = {k_own, k_own, k_own};

  bool operator==(const Tuning&) const = default;
};

}  // namespace rlk::jit
