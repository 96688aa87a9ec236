// SPDX-License-Identifier: Apache-2.0
// Reading of one leaf of logits, for both passes.
#pragma once

#include "../common/cpu/convert.h"
#include "../common/logp/cpu.h"
#include "cpu_args.h"

namespace rlk {
namespace {

using Args = LogpCpuArgs;
constexpr Int64 kLeaf = kLogpCpuLeaf;
static_assert(kLeaf % kLanes == 0);

// Offset of a column of row `row` of the strip.
RLK_INLINE Int64 offset_of(const Args& a, const LogpCpuMatrix& m, Int64 row, Int64 col) {
  const Int64 at = m.offsets ? m.offsets[a.first_row + row] : output_row(a, row) * m.row_stride;
  return at + col * m.col_stride;
}

// Leaves [begin, end) of an item's part, and its row of the strip.
struct Part {
  Int64 row, begin, end;
};
RLK_INLINE Part part_of(const Args& a, Int64 item) {
  const Int64 begin = item % a.num_parts * a.leaves_per_part;
  return {item / a.num_parts, begin, min(begin + a.leaves_per_part, leaves_of(a).count())};
}

RLK_INLINE float inverse_temperature(const Args& a, Int64 row) {
  return a.inverse_temperature ? a.inverse_temperature[a.first_row + row] : 1.0f;
}

// 0, 1, 2, ...
RLK_INLINE VecI lane_index() {
  VecI index = splat_int(0);
#pragma clang loop unroll(full)
  for (int i = 0; i < kLanes; ++i) index[i] = i;
  return index;
}

}  // namespace
}  // namespace rlk
