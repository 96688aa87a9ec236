// SPDX-License-Identifier: Apache-2.0
// Exact sums of vectors: see common/loss/exact.h. A term below 4 is cut into limbs, each the next
// 18 to 22 bits as a 32-bit integer: adding 1.5 * 2^23 units to a float rounds it to one, and what
// is left is exact. Larger terms are rare and go one by one.
#pragma once

#include "common/cpu/vector.h"
#include "common/loss/exact.h"

namespace rlk {

using VecL = long long __attribute__((ext_vector_type(RLK_VL)));

// Lanes whose term is not below 4, NaN too.
RLK_INLINE Mask is_large_term(VecF magnitude) { return !(magnitude < 4.0f); }

// A sum of up to kMostTerms vectors.
template <int kBits>
class ExactLanes {
 public:
  static constexpr int kMostTerms = 512;  // then a lane may be full

  // Every |x| below 4.
  RLK_INLINE_MEMBER void add_small(VecF x) {
    if constexpr (kBits == kTermBits) {
      x = cut(0, x, 0x1p-18f);
      x = cut(1, x, 0x1p-36f);
      x = cut(2, x, 0x1p-54f);
      cut(3, x, 0x1p-72f);
    } else {
      x = cut(0, x, 0x1p-18f);
      cut(1, x, 0x1p-40f);
    }
  }

  // Any x: lanes that are large are taken out first.
  RLK_INLINE_MEMBER void add(VecF x) {
    const Mask large = is_large_term(magnitude(x));
    if (__builtin_reduce_or(large) != 0) {
#pragma clang loop unroll(disable)
      for (int i = 0; i < RLK_VL; ++i) {
        if (large[i]) rlk::add(large_, exact_large(x[i], kBits));
      }
      x = select(large, splat(0.0f), x);
    }
    add_small(x);
  }

  // The sum of all lanes.
  RLK_INLINE_MEMBER ExactSum total() const {
    ExactSum sum = large_;
    if constexpr (kBits == kTermBits) {
      add_limb(sum, 0, 54);
      add_limb(sum, 1, 36);
      add_limb(sum, 2, 18);
      add_limb(sum, 3, 0);
    } else {
      add_limb(sum, 0, 22);
      add_limb(sum, 1, 0);
    }
    return sum;
  }

 private:
  static constexpr int kLimbs = kBits == kTermBits ? 4 : 2;

  // Adds x in whole units to a limb and returns the rest.
  RLK_INLINE_MEMBER VecF cut(int limb, VecF x, float unit) {
    const VecF magic = splat(12582912.0f * unit);
    const VecF shifted = x + magic;
    limbs_[limb] += bits(shifted) - bits(magic);
    return x - (shifted - magic);
  }
  RLK_INLINE_MEMBER void add_limb(ExactSum& sum, int limb, int shift) const {
    const long long lanes = __builtin_reduce_add(__builtin_convertvector(limbs_[limb], VecL));
    // |lanes| < 2^36, so that it fits beside any shift but the largest.
    if (shift < 27) {
      rlk::add(sum, exact_integer(lanes * (1ll << shift), 0));
    } else {
      rlk::add(sum, exact_integer(lanes * (1ll << (shift - 32)), 32));
    }
  }

  VecI limbs_[kLimbs] = {};
  ExactSum large_{};
};

}  // namespace rlk
