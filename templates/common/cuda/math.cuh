// SPDX-License-Identifier: Apache-2.0
// exp and log of CUDA templates: one instruction or our own polynomial, never a device library, so
// that bits do not follow the compiler's version.
#pragma once

#include "common/cuda/ptx.cuh"

namespace rlk {

constexpr float kLog2E = 1.44269504088896341f;

// e^x for x <= 0: exp(0) is exactly 1, results below 2^-126 are 0, NaN stays NaN.
RLK_DEVICE float exp_f32(float x) { return ex2_approx(x * kLog2E); }

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

}  // namespace rlk
