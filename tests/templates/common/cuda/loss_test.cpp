// SPDX-License-Identifier: Apache-2.0
// The common parts of the losses on the host, as CUDA's lanes take them.
#include "common/cuda/lanes.cuh"
// The lanes stand before what is written over them.
#include "common/loss/exact.h"
#include "common/loss/token.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>

namespace rlk {
namespace {

constexpr float k_inf = std::numeric_limits<float>::infinity();

__extension__ using Int128 = __int128;
__extension__ using UInt128 = unsigned __int128;

double relative(float got, long double exact) {
  if (exact == 0) return got == 0 ? 0 : 1;
  return static_cast<double>(std::fabs((got - exact) / exact));
}

TEST(LossTest, ExponentialsAreAccurateWhereverTheyCancel) {
  double exp_error = 0, expm1_error = 0, k3_error = 0;
  for (int e = -30; e <= 6; ++e) {
    for (int m = 0; m < 1000; ++m) {
      for (const float sign : {1.0f, -1.0f}) {
        const float x = sign * std::ldexp(1.0f + static_cast<float>(m) / 1000, e);
        if (x < -86.0f || x > 88.0f) continue;
        const Exponential got = exponential(x);
        const auto wide = static_cast<long double>(x);
        exp_error = std::max(exp_error, relative(got.exp, std::exp(wide)));
        expm1_error = std::max(expm1_error, relative(got.expm1, std::expm1(wide)));
        // expm1(x) - x of long doubles has 64 bits less what cancels.
        long double k3 = wide * wide / 2 * (1 + wide / 3 * (1 + wide / 4 * (1 + wide / 5)));
        if (std::fabs(wide) > 1e-3L) k3 = std::expm1(wide) - wide;
        k3_error = std::max(k3_error, relative(got.k3, k3));
        ASSERT_GE(got.k3, 0.0f) << x;
      }
    }
  }
  EXPECT_LT(exp_error, 2.5e-7);
  EXPECT_LT(expm1_error, 4e-7);
  EXPECT_LT(k3_error, 1.5e-6);
}

TEST(LossTest, ExponentialsAtTheEnds) {
  const Exponential zero = exponential(0.0f);
  EXPECT_EQ(zero.exp, 1.0f);
  EXPECT_EQ(zero.expm1, 0.0f);
  EXPECT_EQ(zero.k3, 0.0f);
  EXPECT_EQ(exponential(89.0f).exp, k_inf);
  EXPECT_LT(exponential(88.7f).exp, k_inf);
  EXPECT_EQ(exponential(-k_inf).exp, 0.0f);
  EXPECT_EQ(exponential(-k_inf).expm1, -1.0f);
  EXPECT_EQ(exponential(k_inf).k3, k_inf);
  EXPECT_EQ(exponential(-200.0f).k3, 199.0f);
  const Exponential nan = exponential(std::numeric_limits<float>::quiet_NaN());
  EXPECT_TRUE(std::isnan(nan.exp) && std::isnan(nan.expm1) && std::isnan(nan.k3));
  EXPECT_EQ(logistic(-k_inf).value, 0.0f);
  EXPECT_EQ(logistic(-k_inf).rest, 1.0f);
  EXPECT_EQ(logistic(k_inf).rest, 0.0f);
}

Int128 integer(const ExactSum& sum) {
  return static_cast<Int128>(sum.high) << 64 | static_cast<Int128>(sum.low);
}

TEST(LossTest, LargeTermsAreTheirIntegers) {
  std::mt19937 random(1);
  for (int i = 0; i < 10000; ++i) {
    const float mantissa = 1.0f + static_cast<float>(random() % (1u << 23)) / (1u << 23);
    const float x =
        std::ldexp(random() % 2 ? mantissa : -mantissa, 2 + static_cast<int>(random() % 50));
    for (const int bits : {kTermBits, kMetricBits}) {
      const ExactSum term = exact_large(x, bits);
      ASSERT_EQ(term.special, 0) << x;
      // 2^bits in two steps, each within a long double's integer.
      const auto part = static_cast<Int128>(std::ldexp(static_cast<long double>(x), 22));
      ASSERT_TRUE(integer(term) == part * (static_cast<Int128>(1) << (bits - 22))) << x;
      ASSERT_EQ(exact_value(term, bits), x);
    }
  }
}

TEST(LossTest, ANegativeSumHasTheBitsOfItsOpposite) {
  std::mt19937 random(2);
  for (int i = 0; i < 10000; ++i) {
    const auto value = static_cast<long long>(std::uint64_t{random()} << 31 | random()) >> (i % 62);
    for (const int shift : {0, 32, 64}) {
      const ExactSum sum = exact_integer(value, shift), opposite = exact_integer(-value, shift);
      const double want = std::ldexp(static_cast<double>(value), shift - kTermBits);
      ASSERT_EQ(exact_value(sum, kTermBits), static_cast<float>(want)) << value << " " << shift;
      ASSERT_EQ(exact_value(opposite, kTermBits), static_cast<float>(-want));
    }
  }
}

TEST(LossTest, EveryEstimatorIsFlatBeyondEachClamp) {
  LossChoices c{};
  for (const auto& [most, output, is_flat] :
       {std::tuple{2.0f, k_inf, true}, {k_inf, 0.5f, true}, {k_inf, k_inf, false}}) {
    LossValues v{};
    v.kl_clamp = most;
    v.kl_output_clamp = output;
    for (const float e : {3.0f, -3.0f}) {
      for (c.kl = kKl1; c.kl <= kKl3; ++c.kl) {
        for (const auto gradient : {kPathwise, kImportance}) {
          c.kl_gradient = gradient;
          EXPECT_EQ(kl_term(c, v, e, {}).grad == 0.0f, is_flat) << c.kl << " " << e;
        }
      }
    }
  }
}

// r k + r k' by itself cancels near 0.
TEST(LossTest, AWeightedK3HasNoCancellation) {
  LossChoices c{};
  c.kl = kKl3;
  c.kl_weight = kPolicyRatio;
  LossValues v{};
  v.kl_clamp = v.kl_output_clamp = k_inf;
  for (const float e : {1e-3f, -1e-5f, 1e-12f}) {
    EXPECT_EQ(kl_term(c, v, e, {0.75f, true, false}).grad, 0.75f * -e);
  }
}

TEST(LossTest, WhatHasNoIntegerIsFlagged) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  EXPECT_EQ(exact_large(nan, kTermBits).special, ExactSum::kNan);
  EXPECT_EQ(exact_large(k_inf, kMetricBits).special, ExactSum::kInf);
  EXPECT_EQ(exact_large(-1e30f, kTermBits).special, ExactSum::kMinusInf);
  EXPECT_EQ(exact_large(1e18f, kMetricBits).special, 0);
  ExactSum sum{};
  const ExactSum most = exact_large(std::ldexp(1.0f, 53), kTermBits);
  for (int i = 0; i < 3; ++i) add(sum, most);
  EXPECT_EQ(sum.special, 0);
  add(sum, most);  // 2^55
  EXPECT_EQ(exact_value(sum, kTermBits), k_inf);
  add(sum, exact_large(-k_inf, kTermBits));
  EXPECT_TRUE(std::isnan(exact_value(sum, kTermBits)));
  long long words[2];
  store_exact(words, sum);
  EXPECT_EQ(words[0], std::numeric_limits<long long>::min());
  EXPECT_EQ(words[1], ExactSum::kInf | ExactSum::kMinusInf);
}

TEST(LossTest, IntegersAreShiftedWithTheirSign) {
  for (const long long value : {0ll, 1ll, -1ll, 123456789012345ll, -(1ll << 62)}) {
    for (const int shift : {0, 32, 64}) {
      const ExactSum sum = exact_integer(value, shift);
      const auto want = static_cast<UInt128>(static_cast<Int128>(value)) << shift;
      EXPECT_TRUE(static_cast<UInt128>(integer(sum)) == want) << value << " " << shift;
    }
  }
}

// What no test of the whole op sees: bits that an inactive token could change.
TEST(LossTest, AnInactiveTokenIsAllZeros) {
  LossChoices c{kPpo, kSequenceRatio, 1,         kLossCap,     kTruncate, kTokenLevel,
                1,    kKl3,           kPathwise, kPolicyRatio, 1};
  LossValues v{-20, 20, -20, 20, 0.8f, 1.2f, 3, 1, 1.05f, 0, 10, 20, k_inf, 0.1f, 20, k_inf, 0.01f};
  for (const float wild : {k_inf, -k_inf, 1e30f, std::numeric_limits<float>::quiet_NaN()}) {
    TokenInput in{false, wild, wild, wild, wild, wild, wild, wild, wild, wild, wild, wild, wild};
    const TokenResult out = token_loss(c, v, in);
    for (const float zero :
         {out.term, out.policy_term, out.grad, out.sequence_grad, out.grad_entropy, out.log_ratio,
          out.k3, out.log_correction, out.kl, out.entropy}) {
      EXPECT_EQ(zero, 0.0f);
    }
    EXPECT_EQ(out.ratio, 1.0f);
    EXPECT_FALSE(out.nonfinite || out.clamped || out.clip_high || out.clip_low || out.dual);
    EXPECT_FALSE(out.correction_high || out.correction_low || out.rejected || out.outside);
  }
}

}  // namespace
}  // namespace rlk
