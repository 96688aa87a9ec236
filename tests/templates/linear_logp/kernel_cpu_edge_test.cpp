// SPDX-License-Identifier: Apache-2.0
// Infinities, NaN, inactive rows, and the rounding of 16-bit inputs and outputs.
#include "tests/templates/linear_logp/kernel_fixture.hpp"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>

namespace rlk::test {
namespace {

constexpr float k_infinity = std::numeric_limits<float>::infinity();
constexpr float k_nan = std::numeric_limits<float>::quiet_NaN();

class KernelCpuEdge : public testing::TestWithParam<Target> {
 protected:
  const Kernel& k = kernel(GetParam(), kTypeFloat32);
};

TEST_P(KernelCpuEdge, MaskedColumnsHaveNoProbabilityAndNoGradient) {
  Problem p = random_problem(kTypeFloat32, 30, 40, 400);
  Problem without = p;
  // A whole leaf, columns here and there, and the last one.
  for (Int64 v = 0; v < p.v(); ++v) {
    if (v < 128 || v % 7 == 3 || v == 399) p.bias.set(v, 0, -k_infinity);
  }
  for (auto& t : p.target) t = 128 + (t % 30) * 7 + (128 + (t % 30) * 7) % 7;
  for (auto& t : p.target) {
    while (p.bias.get(t, 0) == -k_infinity) ++t;
  }
  p.target[4] = 5;  // a masked target
  const Result got = run(k, p);
  for (Int64 v = 0; v < p.v(); ++v) {
    const bool masked = p.bias.get(v, 0) == -k_infinity;
    if (!masked) continue;
    EXPECT_EQ(got.grad_bias.get(v, 0), 0.0f) << v;
    for (Int64 c = 0; c < p.d(); ++c) EXPECT_EQ(got.grad_weight.get(v, c), 0.0f) << v;
  }
  for (std::size_t i = 0; i < got.logp.size(); ++i) {
    if (i == 4) {
      EXPECT_EQ(got.logp[i], -k_infinity);
    } else {
      EXPECT_TRUE(std::isfinite(got.logp[i])) << i;
    }
    EXPECT_TRUE(std::isfinite(got.grad_hidden.get(static_cast<Int64>(i), 0))) << i;
  }
  // With a masked target the other columns keep -g * p: the bias gradient of row 4 alone sums to
  // -g.
  const Result alone = run(k, take_rows(p, {4}));
  double sum = 0;
  for (Int64 v = 0; v < p.v(); ++v) sum += alone.grad_bias.get(v, 0);
  EXPECT_NEAR(sum, -p.grad[4] * p.inverse_temperature[4], 1e-5);
}

TEST_P(KernelCpuEdge, RowOfOnlyMinusInfinityIsNan) {
  Problem p = random_problem(kTypeFloat32, 3, 8, 300);
  for (Int64 v = 0; v < p.v(); ++v) p.bias.set(v, 0, -k_infinity);
  const Result got = run(k, p);
  for (float x : got.logp) EXPECT_TRUE(std::isnan(x));
  EXPECT_TRUE(std::isnan(got.grad_hidden.get(0, 0)));
}

TEST_P(KernelCpuEdge, NanAndInfinityStayInTheirRow) {
  for (float bad : {k_nan, k_infinity}) {
    Problem p = random_problem(kTypeFloat32, 65, 50, 300);
    const Result clean = run(k, p);
    p.hidden.set(17, 9, bad);
    const Result got = run(k, p);
    for (std::size_t i = 0; i < 65; ++i) {
      const auto row = static_cast<Int64>(i);
      if (i == 17) {
        EXPECT_TRUE(std::isnan(got.logp[i])) << bad;
        EXPECT_TRUE(std::isnan(got.grad_hidden.get(row, 0))) << bad;
      } else {
        EXPECT_TRUE(same_bits(got.logp[i], clean.logp[i])) << i;
        EXPECT_TRUE(same_bits(got.grad_hidden.get(row, 3), clean.grad_hidden.get(row, 3))) << i;
      }
    }
  }
  // One NaN column, by its bias: every row has it.
  for (float bad : {k_nan, k_infinity}) {
    for (Int64 at : {0, 130, 299}) {
      Problem p = random_problem(kTypeFloat32, 5, 50, 300);
      p.bias.set(at, 0, bad);
      for (float x : run(k, p).logp) EXPECT_TRUE(std::isnan(x)) << bad << " at " << at;
    }
  }
  // NaNs of other bits than the usual ones.
  for (std::uint32_t bits : {0x7f800001u, 0xffffffffu, 0x7fc12345u, 0x7fc00101u}) {
    Problem p = random_problem(kTypeFloat32, 5, 50, 300);
    p.hidden.set(2, 3, std::bit_cast<float>(bits));
    const Result got = run(k, p);
    EXPECT_TRUE(std::isnan(got.logp[2])) << bits;
    EXPECT_TRUE(std::isnan(got.grad_hidden.get(2, 0))) << bits;
    EXPECT_FALSE(std::isnan(got.logp[1])) << bits;
  }
}

TEST_P(KernelCpuEdge, InactiveRowsAreNeitherReadNorWritten) {
  Problem all = random_problem(kTypeFloat32, 200, 70, 150);
  std::vector<Int64> active;
  for (Int64 i = 0; i < all.n(); ++i) {
    if (i % 3 != 1) active.push_back(i);
  }
  const Result want = run(k, take_rows(all, active));
  Problem p = all;
  p.active = active;
  for (Int64 i = 1; i < all.n(); i += 3) {
    const auto at = static_cast<std::size_t>(i);
    for (Int64 c = 0; c < all.d(); ++c) p.hidden.set(i, c, k_nan);
    p.target[at] = Int64{1} << 40;
    p.inverse_temperature[at] = k_nan;
    p.grad[at] = k_nan;
  }
  const Result got = run(k, p);
  EXPECT_TRUE(got.grad_weight == want.grad_weight);
  EXPECT_TRUE(got.grad_bias == want.grad_bias);
  std::size_t next = 0;
  for (Int64 i = 0; i < all.n(); ++i) {
    const auto at = static_cast<std::size_t>(i);
    if (i % 3 == 1) {
      EXPECT_TRUE(std::isnan(got.logp[at]));  // untouched
      EXPECT_TRUE(std::isnan(got.grad_hidden.get(i, 0)));
    } else {
      EXPECT_TRUE(same_bits(got.logp[at], want.logp[next]));
      EXPECT_TRUE(
          same_bits(got.grad_hidden.get(i, 5), want.grad_hidden.get(static_cast<Int64>(next), 5)));
      ++next;
    }
  }
}

TEST_P(KernelCpuEdge, NoRowsGiveZeroGradients) {
  Problem p = random_problem(kTypeFloat32, 1, 20, 1500);
  LinearLogpCpuOperands o{};
  Matrix weight(kTypeFloat32, 1500, 20), bias(kTypeFloat32, 1500, 1);
  o.vocab = 1500;
  o.dim = 20;
  o.grad_weight = weight.data();
  o.grad_weight_row_stride = 20;
  o.grad_weight_col_stride = 1;
  o.grad_bias = bias.data();
  o.bias_type = kTypeFloat32;
  o.grad_bias_stride = 1;
  auto& pool = runtime::ThreadPool::instance();
  launch_linear_logp_fwd(k.fwd, k.tile, o, pool);
  launch_linear_logp_bwd(k.bwd, k.tile, o, pool);
  for (Int64 v = 0; v < 1500; ++v) {
    EXPECT_EQ(bias.get(v, 0), 0.0f);
    for (Int64 c = 0; c < 20; ++c) EXPECT_EQ(weight.get(v, c), 0.0f);
  }
}

// One row, two equal logits, upstream gradient 2 * s: dweight[target] is s * hidden, rounded once.
TEST_P(KernelCpuEdge, SixteenBitValuesAreReadAndRoundedRight) {
  for (Int64 type : {kTypeBfloat16, kTypeFloat16}) {
    const Kernel& half = kernel(GetParam(), type);
    for (float scale : {1.0f, -1.0f, 1.0009765f, 0.74609375f, 3e-3f}) {
      Problem p;
      p.hidden = Matrix(type, 1, 65536);
      p.weight = Matrix(type, 2, 65536);
      Int64 d = 0;
      for (unsigned bits = 0; bits < 65536; ++bits) {
        const float value = widen(static_cast<std::uint16_t>(bits), type);
        p.hidden.set(0, d, std::isfinite(value) ? value : 0.0f);
        p.weight.set(0, d, 0.0f);
        p.weight.set(1, d, 0.0f);
        ++d;
      }
      p.target = {1};
      p.grad = {2 * scale};
      const Result got = run(half, p);
      Int64 wrong = 0;
      for (Int64 c = 0; c < d; ++c) {
        const float want = widen(narrow(scale * p.hidden.get(0, c), type), type);
        wrong += got.grad_weight.get(1, c) != want;
      }
      EXPECT_EQ(wrong, 0) << "type " << type << " scale " << scale;
      EXPECT_NEAR(got.logp[0], -std::log(2.0), 1e-6);
    }
  }
}

TEST_P(KernelCpuEdge, SixteenBitGradientsKeepNanAndOverflow) {
  for (Int64 type : {kTypeBfloat16, kTypeFloat16}) {
    Problem p = random_problem(type, 1, 50, 20);
    p.grad = {k_nan};
    EXPECT_TRUE(std::isnan(run(kernel(GetParam(), type), p).grad_hidden.get(0, 0)));
    Problem q;
    q.hidden = Matrix(type, 1, 40);
    q.weight = Matrix(type, 2, 40);
    for (Int64 c = 0; c < 40; ++c) {
      q.hidden.set(0, c, c % 2 != 0 ? 1.0f : -1.0f);
      q.weight.set(0, c, 0.0f);
      q.weight.set(1, c, 0.0f);
    }
    q.target = {1};
    q.grad = {type == kTypeFloat16 ? 2 * 65520.0f : 0x1.ffp127f};
    const float big = type == kTypeFloat16 ? k_infinity : 0x1p127f;
    const Result got = run(kernel(GetParam(), type), q);
    EXPECT_EQ(got.grad_weight.get(1, 1), big);
    EXPECT_EQ(got.grad_weight.get(1, 38), -big);
    if (type != kTypeFloat16) continue;
    q.grad = {2 * 65519.0f};
    EXPECT_EQ(run(kernel(GetParam(), type), q).grad_weight.get(1, 1), 65504.0f);
  }
}

TEST_P(KernelCpuEdge, ConstantsSumExactly) {
  // Equal logits: p is 1/v and log-prob -log(v), whatever the leaf and the lane.
  for (Int64 v : {1, 2, 127, 128, 129, 1000}) {
    Problem p = random_problem(kTypeFloat32, 3, 10, v);
    for (Int64 c = 0; c < v; ++c) {
      p.bias.set(c, 0, 0.5f);
      for (Int64 d = 0; d < 10; ++d) p.weight.set(c, d, 0.25f);
    }
    for (float x : run_forward(k, p).logp) {
      EXPECT_NEAR(x, -std::log(static_cast<double>(v)), 1e-6) << v;
      if (v == 1) {
        EXPECT_EQ(x, 0.0f);
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Levels, KernelCpuEdge, testing::ValuesIn(levels()), [](const auto& level) {
  std::string text(name(level.param));
  for (char& c : text) c = c == '-' ? '_' : c;
  return text;
});

}  // namespace
}  // namespace rlk::test
