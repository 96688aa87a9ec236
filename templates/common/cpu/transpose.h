// SPDX-License-Identifier: Apache-2.0
// Transposing of storage types to fp32, in squares of a vector's width.
#pragma once

#include "convert.h"

namespace rlk {

template <int... kValues>
struct LaneList {};
template <int kCount, int... kValues>
struct CountLanes : CountLanes<kCount - 1, kCount - 1, kValues...> {};
template <int... kValues>
struct CountLanes<0, kValues...> {
  using List = LaneList<kValues...>;
};
using AllLanes = CountLanes<RLK_VL>::List;

// Of each pair of blocks of kHalf lanes: the first of both vectors, or the second of both.
template <int kHalf, int... kL>
RLK_INLINE VecF firsts(VecF x, VecF y, LaneList<kL...>) {
  return __builtin_shufflevector(x, y, ((kL & kHalf) ? RLK_VL + kL - kHalf : kL)...);
}
template <int kHalf, int... kL>
RLK_INLINE VecF seconds(VecF x, VecF y, LaneList<kL...>) {
  return __builtin_shufflevector(x, y, ((kL & kHalf) ? RLK_VL + kL : kL + kHalf)...);
}

// Lane i of x[j] and lane j of x[i] change places.
template <int kHalf = RLK_VL / 2>
RLK_INLINE void transpose(VecF (&x)[RLK_VL]) {
#pragma clang loop unroll(full)
  for (int i = 0; i < RLK_VL; ++i) {
    if (i & kHalf) continue;
    const VecF low = x[i], high = x[i + kHalf];
    x[i] = firsts<kHalf>(low, high, AllLanes{});
    x[i + kHalf] = seconds<kHalf>(low, high, AllLanes{});
  }
  if constexpr (kHalf > 1) transpose<kHalf / 2>(x);
}

// Element j of line i, at base[offset + i + j * element_stride], to to[i * step + j] for j below
// `used`; zeros up to kWidth.
template <__INT64_TYPE__ kWidth>
RLK_INLINE void transpose_lines(const void* base, __INT64_TYPE__ offset,
                                __INT64_TYPE__ element_stride, __INT64_TYPE__ type,
                                __INT64_TYPE__ num_lines, __INT64_TYPE__ used, float* to,
                                __INT64_TYPE__ step) {
  const char* const from = static_cast<const char*>(base) + offset * size_of(type);
  const __INT64_TYPE__ stride = element_stride * size_of(type);
  const __INT64_TYPE__ whole = num_lines & ~(kLanes - 1);
#pragma clang loop unroll(disable)
  for (__INT64_TYPE__ j = 0; j < kWidth; j += kLanes) {
    const __INT64_TYPE__ count = used - j;
#pragma clang loop unroll(disable)
    for (__INT64_TYPE__ i = 0; i < whole; i += kLanes) {
      const char* const first = from + j * stride + i * size_of(type);
      VecF x[RLK_VL];
      if (count >= kLanes) {
#pragma clang loop unroll(full)
        for (int l = 0; l < RLK_VL; ++l) x[l] = load_vector(first + l * stride, type);
      } else {
#pragma clang loop unroll(full)
        for (int l = 0; l < RLK_VL; ++l) {
          x[l] = l < count ? load_vector(first + l * stride, type) : splat(0.0f);
        }
      }
      transpose(x);
#pragma clang loop unroll(full)
      for (int l = 0; l < RLK_VL; ++l) store(to + (i + l) * step + j, x[l]);
    }
#pragma clang loop unroll(disable)
    for (__INT64_TYPE__ i = whole; i < num_lines; ++i) {
#pragma clang loop unroll(disable) vectorize(disable)
      for (__INT64_TYPE__ l = 0; l < kLanes; ++l) {
        to[i * step + j + l] =
            l < count ? load_element(base, offset + i + (j + l) * element_stride, type) : 0.0f;
      }
    }
  }
}

}  // namespace rlk
