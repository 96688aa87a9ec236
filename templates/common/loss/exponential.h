// SPDX-License-Identifier: Apache-2.0
// e^x, e^x - 1 and e^x - 1 - x of one reduction, each with a small relative error of its own.
// Written over the lanes of common/cpu/vector.h or common/cuda/lanes.cuh, which stands before it.
#pragma once

namespace rlk {

struct Exponential {
  VecF exp;    // e^x; inf above 88.72, 0 below -86.6
  VecF expm1;  // e^x - 1
  VecF k3;     // e^x - 1 - x >= 0: the k3 estimator's value at x
};

// x = n * ln 2 + f, e^f = 1 + f + f^2 q(f) with |f| <= 0.35. NaN stays NaN; 0 gives 1, 0, 0. What
// is_moderate is known to be between -86 and 88.
RLK_INLINE Exponential exponential(VecF x, bool is_moderate = false) {
  const VecF magic = splat(12582912.0f);  // 1.5 * 2^23: adding it rounds to an integer
  const VecF shifted = fma(x, splat(1.44269504088896341f), magic);
  const VecF n = shifted - magic;
  VecF f = fma(n, splat(-0.693359375f), x);  // exact: few bits
  f = fma(n, splat(2.12194440e-4f), f);
  VecF q = splat(2.48015873e-5f);
  q = fma(q, f, splat(1.98412698e-4f));
  q = fma(q, f, splat(1.38888889e-3f));
  q = fma(q, f, splat(8.33333333e-3f));
  q = fma(q, f, splat(4.16666667e-2f));
  q = fma(q, f, splat(1.66666667e-1f));
  q = fma(q, f, splat(0.5f));
  const VecF square = f * f * q;
  const VecF p = f + square;
  const VecF half = from_bits((bits(shifted) + 126) << 23);  // 2^(n-1): 2^n may overflow
  const Mask whole = n == 0.0f;
  Exponential e;
  e.exp = (1.0f + p) * half * 2.0f;
  e.expm1 = select(whole, p, fma(half, p, half - 0.5f) * 2.0f);
  e.k3 = select(whole, square, e.expm1 - x);
  if (is_moderate) return e;
  const Mask high = x > 88.72283f, low = x < -86.6f;
  const VecF inf = from_bits(bits(splat(0.0f)) | 0x7f800000);
  e.exp = select(high, inf, select(low, splat(0.0f), e.exp));
  e.expm1 = select(high, inf, select(low, splat(-1.0f), e.expm1));
  e.k3 = select(high, inf, select(low, -1.0f - x, e.k3));
  return e;
}

struct Logistic {
  VecF value, rest;  // 1 / (1 + e^-x), and 1 minus it without cancellation
};
RLK_INLINE Logistic logistic(VecF x) {
  const VecF e = exponential(-x).exp;
  const VecF value = 1.0f / (1.0f + e);
  return {value, select(value == 0.0f, splat(1.0f), e * value)};
}

}  // namespace rlk
