// SPDX-License-Identifier: Apache-2.0
// A row's bits depend on that row alone: not on neighbours, position, strides, threads, nor on
// whether sizes are constants.
#include "tests/templates/linear_logp/kernel_fixture.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <numeric>

namespace rlk::test {
namespace {

class Threads {
 public:
  explicit Threads(int count) { runtime::ThreadPool::set_num_threads(count); }
  ~Threads() { runtime::ThreadPool::set_num_threads(0); }
};

void expect_same(const Result& a, const Result& b, const std::string& what) {
  EXPECT_TRUE(same_bits(a.logp, b.logp)) << what;
  EXPECT_TRUE(same_bits(a.row_max, b.row_max)) << what;
  EXPECT_TRUE(same_bits(a.row_log_sum, b.row_log_sum)) << what;
  EXPECT_TRUE(same_bits(a.entropy, b.entropy)) << what;
  EXPECT_TRUE(same_bits(a.lse, b.lse)) << what;
  EXPECT_TRUE(a.grad_hidden == b.grad_hidden) << what;
  EXPECT_TRUE(a.grad_weight == b.grad_weight) << what;
  EXPECT_TRUE(a.grad_bias == b.grad_bias) << what;
}

std::string text(Target target, Int64 number) {
  return std::string(name(target)) + " " + std::to_string(number);
}

TEST(KernelCpuInvariance, RowsInBatchesOfAnySize) {
  for (Target target : levels()) {
    const Kernel& k = kernel(target, kTypeFloat32);
    const Problem all = with_options(random_problem(kTypeFloat32, 1000, 203, 301));
    const Result whole = run(k, all, {true, false, false});
    for (Int64 n : {1, 2, 15, 16, 17, 63, 64, 65, 127}) {
      for (Int64 first : {Int64{0}, Int64{311}, 1000 - n}) {
        std::vector<Int64> rows(static_cast<std::size_t>(n));
        std::iota(rows.begin(), rows.end(), first);
        const Result part = run(k, take_rows(all, rows), {true, false, false});
        for (Int64 i = 0; i < n; ++i) {
          const auto a = static_cast<std::size_t>(i), b = static_cast<std::size_t>(first + i);
          ASSERT_TRUE(same_bits(part.logp[a], whole.logp[b])) << text(target, n) << " row " << i;
          ASSERT_TRUE(same_bits(part.row_max[a], whole.row_max[b]));
          ASSERT_TRUE(same_bits(part.row_log_sum[a], whole.row_log_sum[b]));
          ASSERT_TRUE(same_bits(part.entropy[a], whole.entropy[b]));
          ASSERT_TRUE(same_bits(part.lse[a], whole.lse[b]));
          for (Int64 c = 0; c < all.d(); ++c) {
            ASSERT_TRUE(same_bits(part.grad_hidden.get(i, c), whole.grad_hidden.get(first + i, c)))
                << text(target, n) << " row " << i << " dhidden";
          }
        }
      }
    }
  }
}

TEST(KernelCpuInvariance, ThreadsDoNotMatter) {
  for (Target target : levels()) {
    for (const Problem& p :
         {random_problem(kTypeFloat32, 700, 100, 1500), random_problem(kTypeFloat32, 3, 500, 2000),
          with_options(random_problem(kTypeFloat32, 900, 300, 5))}) {
      const Kernel& k = kernel(target, kTypeFloat32);
      const Threads one(1);
      const Result alone = run(k, p);
      for (int count : {2, 3, 7}) {
        const Threads several(count);
        expect_same(run(k, p), alone, text(target, count));
      }
    }
  }
}

TEST(KernelCpuInvariance, ConstantSizesGiveTheSameBits) {
  for (Target target : levels()) {
    for (Int64 type : {kTypeFloat32, kTypeBfloat16, kTypeFloat16}) {
      const Problem p = random_problem(type, 70, 195, 389, 5, type);
      expect_same(run(kernel(target, type, p.v(), p.d()), p), run(kernel(target, type), p),
                  text(target, type));
    }
    // Sizes that make loops vanish.
    for (Int64 size : {1, 192, 384}) {
      const Problem p = random_problem(kTypeFloat32, 5, size, size, 6);
      expect_same(run(kernel(target, kTypeFloat32, size, size), p),
                  run(kernel(target, kTypeFloat32), p), text(target, size));
    }
  }
}

// Every option constant and at run time, asked for and not.
TEST(KernelCpuInvariance, ConstantOptionsGiveTheSameBits) {
  const Problem full = with_options(random_problem(kTypeFloat32, 29, 50, 300));
  for (Target target : levels()) {
    for (int bits = 0; bits < 8; ++bits) {
      const Options options{bits & 1, bits >> 1 & 1, bits >> 2};
      Problem p = full;
      if (options.softcap == 0) p.softcap = 0;
      if (options.logit_scale == 0) p.logit_scale = 1;
      p.entropy = options.entropy == 1;
      if (!p.entropy) p.grad_entropy.clear();
      for (bool lse : {false, true}) {
        p.lse = lse;
        if (!lse) p.grad_lse.clear();
        const Result got = run(kernel(target, kTypeFloat32, -1, -1, options), p);
        expect_same(got, run(kernel(target, kTypeFloat32), p), text(target, bits));
        // A value not asked for is not written, and changes none of the others.
        EXPECT_EQ(std::isnan(got.entropy[0]), !p.entropy);
        EXPECT_EQ(std::isnan(got.lse[0]), !lse);
        Problem plain = p;
        plain.entropy = plain.lse = false;
        EXPECT_TRUE(same_bits(run_forward(kernel(target, kTypeFloat32), plain).logp, got.logp));
        p.grad_lse = full.grad_lse;
      }
    }
  }
}

Matrix strided(const Matrix& from, Int64 row_stride, Int64 col_stride) {
  Matrix to(from.type, from.rows, from.cols, row_stride, col_stride);
  for (Int64 i = 0; i < from.rows; ++i) {
    for (Int64 k = 0; k < from.cols; ++k) to.set(i, k, from.get(i, k));
  }
  return to;
}

TEST(KernelCpuInvariance, StridesDoNotMatter) {
  for (Target target : levels()) {
    for (Int64 type : {kTypeFloat32, kTypeBfloat16, kTypeFloat16}) {
      const Problem p = random_problem(type, 37, 101, 150);
      const Result dense = run(kernel(target, type), p);
      Problem q = p;
      q.hidden = strided(p.hidden, 1, p.n());
      q.weight = strided(p.weight, -3 * p.d(), -2);
      q.bias = strided(p.bias, -5, 1);
      expect_same(run(kernel(target, type), q), dense, text(target, type));
      q.hidden = strided(p.hidden, 205, 2);
      q.weight = strided(p.weight, 103, 1);
      expect_same(run(kernel(target, type), q), dense, text(target, type));
    }
  }
}

TEST(KernelCpuInvariance, ExpandedInputsReadLikeCopies) {
  for (Target target : levels()) {
    Problem p = random_problem(kTypeFloat32, 20, 30, 140);
    for (Int64 i = 0; i < p.n(); ++i) {
      for (Int64 k = 0; k < p.d(); ++k) p.hidden.set(i, k, p.hidden.get(0, k));
    }
    for (Int64 v = 0; v < p.v(); ++v) {
      for (Int64 k = 0; k < p.d(); ++k) p.weight.set(v, k, p.weight.get(v, 0));
      p.bias.set(v, 0, p.bias.get(0, 0));
    }
    Problem q = p;
    q.hidden = strided(p.hidden, 0, 1);
    q.weight = strided(p.weight, 1, 0);
    q.bias = strided(p.bias, 0, 1);
    expect_same(run(kernel(target, kTypeFloat32), q), run(kernel(target, kTypeFloat32), p),
                text(target, 0));
  }
}

TEST(KernelCpuInvariance, GradientsAskedForAlone) {
  for (Target target : levels()) {
    const Problem p = random_problem(kTypeFloat32, 70, 60, 200);
    const Kernel& k = kernel(target, kTypeFloat32);
    const Result all = run(k, p);
    EXPECT_TRUE(run(k, p, {true, false, false}).grad_hidden == all.grad_hidden);
    EXPECT_TRUE(run(k, p, {false, true, false}).grad_weight == all.grad_weight);
    EXPECT_TRUE(run(k, p, {false, false, true}).grad_bias == all.grad_bias);
  }
}

}  // namespace
}  // namespace rlk::test
