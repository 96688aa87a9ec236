// SPDX-License-Identifier: Apache-2.0
// Stands in for templates/common/cuda/ptx.cuh on the host: instructions as accurate as PTX promises
// and no better, with errors of the test's choice.
#pragma once

#include <bit>
#include <cmath>
#include <limits>

#define RLK_DEVICE inline

namespace rlk {

// Relative, at most 2^-22.5 and 2^-23: what PTX allows.
inline double error_of_ex2 = 0, error_of_rcp = 0;

inline float infinity() { return std::numeric_limits<float>::infinity(); }
inline int __float_as_int(float x) { return std::bit_cast<int>(x); }
inline float __int_as_float(int x) { return std::bit_cast<float>(x); }
inline unsigned __float_as_uint(float x) { return std::bit_cast<unsigned>(x); }
inline float __uint_as_float(unsigned x) { return std::bit_cast<float>(x); }

inline float abs_f32(float x) { return std::fabs(x); }
inline float fma_rn(float a, float b, float c) { return std::fma(a, b, c); }
inline float ex2_approx(float x) {
  const auto y = static_cast<float>(std::exp2(static_cast<double>(x)) * (1 + error_of_ex2));
  return std::fabs(y) < std::numeric_limits<float>::min() ? 0.0f : y;
}
inline float rcp_approx(float x) {
  return static_cast<float>(1 / static_cast<double>(x) * (1 + error_of_rcp));
}

}  // namespace rlk
