// SPDX-License-Identifier: Apache-2.0
// Exact sums of vectors: see common/loss/exact.h. Doubles hold a float times a power of two
// exactly, and adding 1.5 * 2^52 to one rounds it to an integer.
#pragma once

#include "common/cpu/vector.h"
#include "common/loss/exact.h"

namespace rlk {

using VecD = double __attribute__((ext_vector_type(RLK_VL)));
using VecL = long long __attribute__((ext_vector_type(RLK_VL)));

template <int kBits>
class ExactLanes {
 public:
  RLK_INLINE_MEMBER void add(VecF x) {
    const Mask large = !(magnitude(x) < 8.0f);
    if (__builtin_reduce_or(large) != 0) x = add_large(x, large);
    const VecD scaled = __builtin_convertvector(x, VecD) * 0x1p40;
    const VecD shifted = scaled + kMagic;
    coarse_ += __builtin_bit_cast(VecL, shifted) - kMagicBits;
    if constexpr (kBits == kTermBits) {
      const VecD rest = (scaled - (shifted - kMagic)) * 0x1p32;
      fine_ += __builtin_bit_cast(VecL, rest + kMagic) - kMagicBits;
    }
  }

  // Adds the sum of all lanes to `sum`.
  RLK_INLINE_MEMBER void add_to(ExactSum& sum) const {
    rlk::add(sum, large_);
#pragma clang loop unroll(disable)
    for (int i = 0; i < RLK_VL; ++i) {
      rlk::add(sum, exact_integer(coarse_[i], kBits - kMetricBits));
      if constexpr (kBits == kTermBits) rlk::add(sum, exact_integer(fine_[i], 0));
    }
  }

 private:
  static constexpr double kMagic = 0x1.8p52;
  static constexpr long long kMagicBits = 0x4338000000000000;

  __attribute__((noinline)) VecF add_large(VecF x, Mask large) {
#pragma clang loop unroll(disable)
    for (int i = 0; i < RLK_VL; ++i) {
      if (large[i]) rlk::add(large_, exact_large(x[i], kBits));
    }
    return select(large, splat(0.0f), x);
  }

  VecL coarse_ = 0, fine_ = 0;  // in units of 2^-40 and 2^-72
  ExactSum large_{};
};

}  // namespace rlk
