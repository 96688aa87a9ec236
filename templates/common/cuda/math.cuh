// SPDX-License-Identifier: Apache-2.0
// exp, log and tanh of CUDA templates: an instruction or our own polynomial, never a device
// library, so that bits do not follow the compiler's version.
#pragma once

#include "common/cuda/ptx.cuh"

namespace rlk {

constexpr float kLog2E = 1.44269504088896341f;

// e^x for x <= 0: exp(0) is exactly 1, results below 2^-126 are 0, NaN stays NaN.
RLK_DEVICE float exp_f32(float x) { return ex2_approx(x * kLog2E); }

// e^x - 1 for x <= 0 to within 2 ulp; -inf gives -1, NaN stays NaN.
RLK_DEVICE float expm1_f32(float x) {
  if (x < -0.5f) return exp_f32(x) - 1.0f;
  float p = 2.4801587e-5f;  // 1 / 8!
  p = fma_rn(p, x, 1.9841270e-4f);
  p = fma_rn(p, x, 1.3888889e-3f);
  p = fma_rn(p, x, 8.3333333e-3f);
  p = fma_rn(p, x, 4.1666667e-2f);
  p = fma_rn(p, x, 1.6666667e-1f);
  p = fma_rn(p, x, 0.5f);
  return fma_rn(p * x, x, x);
}

// Natural logarithm of x: 0 -> -inf, NaN -> NaN, inf -> inf; log(1) is exactly 0. x is 0 or normal.
RLK_DEVICE float log_f32(float x) {
  const int i = __float_as_int(x);
  // Split x = m * 2^e with m in [sqrt(1/2), sqrt(2)).
  const int e = (i - 0x3f3504f3) >> 23;
  const float m = __int_as_float(i - (e << 23));
  const float f = m - 1.0f;
  const float ef = static_cast<float>(e);
  float p = 7.0376836292e-2f;
  p = fma_rn(p, f, -1.1514610310e-1f);
  p = fma_rn(p, f, 1.1676998740e-1f);
  p = fma_rn(p, f, -1.2420140846e-1f);
  p = fma_rn(p, f, 1.4249322787e-1f);
  p = fma_rn(p, f, -1.6668057665e-1f);
  p = fma_rn(p, f, 2.0000714765e-1f);
  p = fma_rn(p, f, -2.4999993993e-1f);
  p = fma_rn(p, f, 3.3333331174e-1f);
  const float f2 = f * f;
  float r = p * f2 * f;
  r = fma_rn(ef, -2.12194440e-4f, r);
  r = fma_rn(f2, -0.5f, r);
  r = fma_rn(ef, 0.693359375f, f + r);
  if (x == 0.0f) return -infinity();
  if (x == infinity()) return x;
  return x == x ? r : x;
}

// tanh(x) to within 3 ulp, near 0 too, and slope = 1 - tanh(x)^2 to within 6 + 3 |x| ulp, where it
// vanishes too. tanh is odd; infinities give 1 and -1, NaN stays NaN.
RLK_DEVICE float tanh_f32(float x, float& slope) {
  const float size = abs_f32(x);
  // r = 1 / (e^2|x| + 1) = (1 - tanh|x|) / 2, in [0, 1/2].
  const float r = rcp_approx(ex2_approx(size * (2 * kLog2E)) + 1.0f);
  slope = 4.0f * fma_rn(-r, r, r);
  const float large = fma_rn(-2.0f, r, 1.0f);
  const float with_sign =
      __uint_as_float(__float_as_uint(large) | (__float_as_uint(x) & 0x80000000u));
  // Near 0 that cancels: x + x^3 * P(x^2), 2e-8 from tanh there.
  const float square = x * x;
  float p = 1.3039792e-3f;
  p = fma_rn(p, square, -6.8600932e-3f);
  p = fma_rn(p, square, 2.0904148e-2f);
  p = fma_rn(p, square, -5.3721491e-2f);
  p = fma_rn(p, square, 1.3330360e-1f);
  p = fma_rn(p, square, -3.3333212e-1f);
  const float small = fma_rn(p * square, x, x);
  return size < 0.9f ? small : with_sign;
}
RLK_DEVICE float tanh_f32(float x) {
  float slope;
  return tanh_f32(x, slope);
}

}  // namespace rlk
