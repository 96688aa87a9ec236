// SPDX-License-Identifier: Apache-2.0
// The math of CUDA templates on the host, where each instruction errs as far as PTX allows.
#include "common/cuda/math.cuh"

#include <gtest/gtest.h>

#include <algorithm>

namespace rlk {
namespace {

// Distance in units in the last place of the exact value.
double ulps(float got, long double exact) {
  const int exponent = std::max(std::ilogb(exact), -126);
  return static_cast<double>(std::fabs(got - exact) / std::ldexp(1.0L, exponent - 23));
}

// body(x) for thousands of x from each power of two, under each extreme of the errors.
template <class Body>
void for_each_x(int first_exponent, int last_exponent, Body body) {
  for (const double ex2 : {-1.0, 0.0, 1.0}) {
    for (const double rcp : {-1.0, 0.0, 1.0}) {
      error_of_ex2 = ex2 * std::exp2(-22.5);
      error_of_rcp = rcp * std::exp2(-23);
      for (int e = first_exponent; e <= last_exponent; ++e) {
        for (int m = 0; m < 2048; ++m) body(std::ldexp(1.0f + static_cast<float>(m) / 2048, e));
      }
    }
  }
  error_of_ex2 = error_of_rcp = 0;
}

TEST(CudaMathTest, TanhIsAccurateEverywhere) {
  double worst = 0;
  for_each_x(-126, 7, [&](float x) {
    const float y = tanh_f32(x);
    worst = std::max(worst, ulps(y, std::tanh(static_cast<long double>(x))));
    ASSERT_LE(y, 1.0f) << x;
    ASSERT_EQ(tanh_f32(-x), -y) << x;
  });
  EXPECT_LT(worst, 2.6);
  EXPECT_GT(worst, 0.5) << "a test that sees no error tests nothing";
}

TEST(CudaMathTest, TanhsSlopeIsAccurateWhereItVanishes) {
  for_each_x(-30, 5, [&](float x) {
    if (x > 44) return;  // below 2^-125 it becomes 0
    float slope;
    tanh_f32(x, slope);
    const long double cosh = std::cosh(static_cast<long double>(x));
    // The exponent 2 x log2(e) is rounded, hence x.
    ASSERT_LT(ulps(slope, 1 / (cosh * cosh)), 6 + 3 * x) << x;
    float mirrored;
    tanh_f32(-x, mirrored);
    ASSERT_EQ(mirrored, slope) << x;
  });
}

TEST(CudaMathTest, TanhOfWhatIsNoOrdinaryNumber) {
  float slope;
  for (const float x : {infinity(), 1e30f, 88.0f, 45.0f}) {
    EXPECT_EQ(tanh_f32(x, slope), 1.0f);
    EXPECT_LT(slope, 1e-37f);
    EXPECT_EQ(tanh_f32(-x, slope), -1.0f);
  }
  for (const float zero : {0.0f, -0.0f}) {
    EXPECT_EQ(tanh_f32(zero, slope), 0.0f);
    EXPECT_EQ(slope, 1.0f);
  }
  EXPECT_EQ(tanh_f32(1e-45f), 1e-45f);
  EXPECT_TRUE(std::isnan(tanh_f32(std::nanf(""), slope)));
  EXPECT_TRUE(std::isnan(slope));
}

TEST(CudaMathTest, LogIsAccurate) {
  for_each_x(-126, 127, [&](float x) {
    // From 1 on, as sums of a softmax are; near it the logarithm itself is small.
    ASSERT_LT(ulps(log_f32(x), std::log(static_cast<long double>(x))), 2.0) << x;
  });
  EXPECT_EQ(log_f32(1.0f), 0.0f);
  EXPECT_EQ(log_f32(0.0f), -infinity());
  EXPECT_EQ(log_f32(infinity()), infinity());
  EXPECT_TRUE(std::isnan(log_f32(std::nanf(""))));
}

TEST(CudaMathTest, ExpOfZeroIsOneAndOfLargeNumbersZero) {
  EXPECT_EQ(exp_f32(0.0f), 1.0f);
  EXPECT_EQ(exp_f32(-128.0f), 0.0f) << "what exponent_factor() in linear_logp counts on";
  EXPECT_EQ(exp_f32(-infinity()), 0.0f);
}

}  // namespace
}  // namespace rlk
