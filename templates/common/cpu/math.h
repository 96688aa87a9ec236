// SPDX-License-Identifier: Apache-2.0
// exp, log and tanh of CPU templates: our own polynomials, so that bits follow the level alone.
#pragma once

#include "vector.h"

namespace rlk {

constexpr float kLog2E = 1.44269504088896341f;

// 2^y for y <= 0 (valid to y = 126). 1 ulp with fma. exp2(0) is exactly 1; below 2^-126 it is 0, so
// exp2(-inf) is 0; NaN stays NaN, since every comparison with it is false and the scale multiplies.
RLK_INLINE VecF exp2(VecF y) {
  const VecF magic = splat(12582912.0f);  // 1.5 * 2^23: adding it rounds to an integer
  const VecF shifted = y + magic;
  const VecF f = y - (shifted - magic);  // |f| <= 1/2, exact
  VecF p = splat(1.535336188319500e-4f);
  p = fma(p, f, splat(1.339887440266574e-3f));
  p = fma(p, f, splat(9.618437357674640e-3f));
  p = fma(p, f, splat(5.550332471162809e-2f));
  p = fma(p, f, splat(2.402264791363012e-1f));
  p = fma(p, f, splat(6.931472028550421e-1f));
  p = fma(p, f, splat(1.0f));
  const VecF scale = from_bits((bits(shifted) + 127) << 23);
  return select(y < -126.0f, splat(0.0f), p * scale);
}

// e^x for x <= 0.
RLK_INLINE VecF exp(VecF x) { return exp2(x * kLog2E); }

// x as a factor of exp(x): at least -128, below which exp gives 0, so that what is infinite or
// makes an infinite product adds a zero and no NaN. NaN stays NaN.
RLK_INLINE VecF exponent_factor(VecF x) { return select(x < -128.0f, splat(-128.0f), x); }

// Natural logarithm of x: 0 -> -inf, NaN -> NaN, inf -> inf; log(1) is exactly 0. x is 0 or normal.
RLK_INLINE VecF log(VecF x) {
  const VecI i = bits(x);
  // Split x = m * 2^e with m in [sqrt(1/2), sqrt(2)).
  const VecI e = (i - 0x3f3504f3) >> 23;
  const VecF m = from_bits(i - (e << 23));
  const VecF f = m - 1.0f;
  const VecF ef = __builtin_convertvector(e, VecF);
  VecF p = splat(7.0376836292e-2f);
  p = fma(p, f, splat(-1.1514610310e-1f));
  p = fma(p, f, splat(1.1676998740e-1f));
  p = fma(p, f, splat(-1.2420140846e-1f));
  p = fma(p, f, splat(1.4249322787e-1f));
  p = fma(p, f, splat(-1.6668057665e-1f));
  p = fma(p, f, splat(2.0000714765e-1f));
  p = fma(p, f, splat(-2.4999993993e-1f));
  p = fma(p, f, splat(3.3333331174e-1f));
  const VecF f2 = f * f;
  VecF r = p * f2 * f;
  r = fma(ef, splat(-2.12194440e-4f), r);
  r = fma(f2, splat(-0.5f), r);
  r = fma(ef, splat(0.693359375f), f + r);
  r = select(x == 0.0f, splat(-__builtin_inff()), r);
  r = select(x == __builtin_inff(), x, r);
  return select(x == x, r, x);
}

struct Tanh {
  VecF value;
  VecF slope;  // 1 - value^2
};

// tanh of any x: 1.7 ulp, below 0.6 and so near 0 0.8; +-inf gives +-1, NaN stays NaN. The slope is
// as exact where the value is close to 1, since it is made of what is left to 1.
RLK_INLINE Tanh tanh(VecF x) {
  const VecF size = from_bits(bits(x) & 0x7fffffff);
  const VecF x2 = size * size;
  VecF p = splat(-5.704987e-3f);
  p = fma(p, x2, splat(2.0639086e-2f));
  p = fma(p, x2, splat(-5.3739715e-2f));
  p = fma(p, x2, splat(1.3331442e-1f));
  p = fma(p, x2, splat(-3.333328e-1f));
  const VecF small = fma(size * x2, p, size);
  const VecF e = exp(size * -2.0f);
  const VecI is_small = size < 0.625f;
  const VecF left = select(is_small, 1.0f - small, (e + e) / (1.0f + e));  // 1 - tanh |x|
  const VecF value = select(is_small, small, 1.0f - left);
  return {from_bits(bits(value) | (bits(x) & splat_int(-0x7fffffff - 1))), left * (2.0f - left)};
}

}  // namespace rlk
