// SPDX-License-Identifier: Apache-2.0
// tanh of the softcap, the order of the options, and infinities among them.
#include "tests/templates/linear_logp/kernel_fixture.hpp"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>

namespace rlk::test {
namespace {

constexpr float k_infinity = std::numeric_limits<float>::infinity();
constexpr float k_nan = std::numeric_limits<float>::quiet_NaN();

class KernelCpuOptions : public testing::TestWithParam<Target> {
 protected:
  const Kernel& k = kernel(GetParam(), kTypeFloat32);
};

// One token a row: its logit, the kept maximum, is tanh of the hidden state, and the gradient of
// the log-sum-exp is the slope.
Problem tanh_of(const std::vector<float>& values) {
  Problem p;
  const auto n = static_cast<Int64>(values.size());
  p.hidden = Matrix(kTypeFloat32, n, 1);
  p.weight = Matrix(kTypeFloat32, 1, 1);
  p.weight.set(0, 0, 1.0f);
  p.target.assign(values.size(), 0);
  p.grad_lse.assign(values.size(), 1.0f);
  p.softcap = 1;
  for (Int64 i = 0; i < n; ++i) p.hidden.set(i, 0, values[static_cast<std::size_t>(i)]);
  return p;
}

double ulps(float got, double want) {
  const int exponent = std::max(std::ilogb(want), -126);
  return std::fabs(got - want) / std::ldexp(1.0, exponent - 23);
}

TEST_P(KernelCpuOptions, TanhAndItsSlopeAreAccurateEverywhere) {
  const double most_ulps = GetParam() == Target::x86_64_v2 ? 2.5 : 2.0;
  double worst = 0, worst_slope = 0;
  std::vector<float> values;
  for (std::uint32_t bits = 1; bits < 0x7f800000u; bits += 8191) {
    values.push_back(std::bit_cast<float>(bits));
  }
  for (float x = 0.1f; x < 10; x += 1e-4f) values.push_back(-x);
  const Result got = run(k, tanh_of(values), {true, false, false});
  for (std::size_t i = 0; i < values.size(); ++i) {
    const double x = values[i], slope = 1 / std::cosh(x) / std::cosh(x);
    worst = std::max(worst, ulps(got.row_max[i], std::tanh(x)));
    ASSERT_LE(worst, most_ulps) << x;
    ASSERT_LE(std::fabs(got.row_max[i]), 1.0f) << x;
    if (slope < 1e-30) continue;  // exp(-2 |x|) below 2^-126 is 0
    // The argument of that exp is rounded.
    const float got_slope = got.grad_hidden.get(static_cast<Int64>(i), 0);
    worst_slope = std::max(worst_slope, ulps(got_slope, slope) / (5 + 2.5 * std::fabs(x)));
    ASSERT_LE(worst_slope, 1) << x;
  }
  RecordProperty("worst_ulps", std::to_string(worst));
}

TEST_P(KernelCpuOptions, TanhOfZerosInfinitiesAndNan) {
  const Result got = run(k, tanh_of({0.0f, -0.0f, k_infinity, -k_infinity, k_nan, 3e38f, -3e38f}),
                         {true, false, false});
  const float want[] = {0, -0.0f, 1, -1, k_nan, 1, -1};
  for (std::size_t i = 0; i < 7; ++i) {
    const auto row = static_cast<Int64>(i);
    if (i == 4) {
      EXPECT_TRUE(std::isnan(got.logp[i]));
      EXPECT_TRUE(std::isnan(got.grad_hidden.get(row, 0)));
    } else {
      EXPECT_EQ(got.row_max[i], want[i]) << i;
      EXPECT_EQ(got.logp[i], 0.0f) << i;
      EXPECT_EQ(got.grad_hidden.get(row, 0), i < 2 ? 1.0f : 0.0f) << i;
    }
  }
}

// Every other order gives another number.
TEST_P(KernelCpuOptions, BiasThenScaleThenCapThenTemperature) {
  Problem p = tanh_of({0.8f});
  p.bias = Matrix(kTypeFloat32, 1, 1);
  p.bias.set(0, 0, 0.3f);
  p.logit_scale = 2;
  p.softcap = 1.5f;
  p.inverse_temperature = {1 / 0.7f};
  const Result got = run(k, p, {true, false, false});
  const double x = 2 * (0.8f + 0.3f) / 1.5, inverse = 1 / 0.7f;
  EXPECT_NEAR(got.row_max[0], 1.5 * std::tanh(x) * inverse, 1e-6);
  EXPECT_NEAR(got.grad_hidden.get(0, 0), 2 * inverse / std::cosh(x) / std::cosh(x), 1e-6);
}

TEST_P(KernelCpuOptions, MaskedColumnsAddNothingToEntropyAndHaveNoGradient) {
  Problem p = with_options(random_problem(kTypeFloat32, 30, 40, 400));
  p.softcap = 0;  // a cap would make them finite
  Problem few = p;
  few.weight = Matrix(kTypeFloat32, 100, 40);
  few.bias = Matrix(kTypeFloat32, 100, 1);
  for (Int64 v = 0; v < 400; ++v) {
    if (v < 300) {  // two whole leaves and a part
      p.bias.set(v, 0, -k_infinity);
      continue;
    }
    few.bias.set(v - 300, 0, p.bias.get(v, 0));
    for (Int64 c = 0; c < 40; ++c) few.weight.set(v - 300, c, p.weight.get(v, c));
  }
  for (std::size_t i = 0; i < 30; ++i) {
    few.target[i] = p.target[i] % 100;
    p.target[i] = few.target[i] + 300;
  }
  p.target[7] = 3;  // a masked target
  const Result got = run(k, p), want = run(k, few);
  for (std::size_t i = 0; i < 30; ++i) {
    EXPECT_NEAR(got.entropy[i], want.entropy[i], 2e-6) << i;
    EXPECT_NEAR(got.lse[i], want.lse[i], 2e-6) << i;
    EXPECT_TRUE(std::isfinite(got.grad_hidden.get(static_cast<Int64>(i), 0))) << i;
  }
  EXPECT_EQ(got.logp[7], -k_infinity);
  for (Int64 v = 0; v < 300; ++v) EXPECT_EQ(got.grad_bias.get(v, 0), 0.0f) << v;
}

TEST_P(KernelCpuOptions, ACappedColumnOfMinusInfinityIsFiniteAndHasNoGradient) {
  Problem p = with_options(random_problem(kTypeFloat32, 4, 8, 200));
  p.bias.set(150, 0, -k_infinity);
  p.target[2] = 150;
  const Result got = run(k, p);
  for (std::size_t i = 0; i < 4; ++i) EXPECT_TRUE(std::isfinite(got.logp[i])) << i;
  EXPECT_EQ(got.grad_bias.get(150, 0), 0.0f);
  for (Int64 c = 0; c < 8; ++c) EXPECT_EQ(got.grad_weight.get(150, c), 0.0f);
}

TEST_P(KernelCpuOptions, ARowOfOnlyMinusInfinity) {
  Problem p = with_options(random_problem(kTypeFloat32, 3, 8, 300));
  p.softcap = 0;
  for (Int64 v = 0; v < p.v(); ++v) p.bias.set(v, 0, -k_infinity);
  const Result got = run(k, p);
  for (std::size_t i = 0; i < 3; ++i) {
    EXPECT_TRUE(std::isnan(got.logp[i]));
    EXPECT_TRUE(std::isnan(got.entropy[i]));
    EXPECT_EQ(got.lse[i], -k_infinity);
  }
}

TEST_P(KernelCpuOptions, NanStaysInItsRow) {
  Problem p = with_options(random_problem(kTypeFloat32, 40, 50, 300));
  const Result clean = run(k, p);
  p.hidden.set(17, 9, k_nan);
  const Result got = run(k, p);
  for (std::size_t i = 0; i < 40; ++i) {
    const auto row = static_cast<Int64>(i);
    for (auto values : {&Result::logp, &Result::entropy, &Result::lse}) {
      if (i == 17) {
        EXPECT_TRUE(std::isnan((got.*values)[i]));
      } else {
        EXPECT_TRUE(same_bits((got.*values)[i], (clean.*values)[i])) << i;
      }
    }
    EXPECT_EQ(std::isnan(got.grad_hidden.get(row, 0)), i == 17);
  }
}

TEST_P(KernelCpuOptions, EntropyIsNeverBelowZero) {
  for (float gap : {0.0f, 1.0f, 10.0f, 17.0f, 100.0f, 1000.0f}) {
    Problem p = with_options(random_problem(kTypeFloat32, 20, 64, 300));
    p.softcap = 0;
    p.bias.set(131, 0, gap);
    for (float h : run_forward(k, p).entropy) EXPECT_GE(h, 0.0f) << gap;
  }
  // One token: nothing is open.
  for (float h : run_forward(k, with_options(random_problem(kTypeFloat32, 5, 8, 1))).entropy) {
    EXPECT_EQ(h, 0.0f);
  }
}

INSTANTIATE_TEST_SUITE_P(Levels, KernelCpuOptions, testing::ValuesIn(levels()),
                         [](const auto& level) {
                           std::string text(name(level.param));
                           for (char& c : text) c = c == '-' ? '_' : c;
                           return text;
                         });

}  // namespace
}  // namespace rlk::test
