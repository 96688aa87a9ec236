// SPDX-License-Identifier: Apache-2.0
// The CPU kernels against float64, within the bounds of docs/numerics.md.
#include "tests/templates/linear_logp/kernel_fixture.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>

namespace rlk::test {
namespace {

constexpr double k_infinity = std::numeric_limits<double>::infinity();

double unit_of(Int64 type) {
  return type == kTypeFloat32 ? 0x1p-24 : type == kTypeBfloat16 ? 0x1p-8 : 0x1p-11;
}

// Largest |error| / bound met so far; above 1 the test fails.
struct Worst {
  double ratio = 0;
  void see(double got, double want, double bound, const std::string& where) {
    if (std::isnan(want) ? std::isnan(got) : got == want) return;
    const double error = std::fabs(got - want) / bound;
    ratio = std::max(ratio, std::isnan(error) ? k_infinity : error);
    if (!(error <= 1)) {
      ADD_FAILURE() << where << ": got " << got << ", want " << want << ", bound " << bound;
    }
  }
};

struct Row {
  std::vector<double> z, logp, dz, dz_bound;
  double logp_bound = 0;
};

// Row i in float64, with bounds of its log-prob and of each dZ.
Row oracle_row(const Problem& p, Int64 i) {
  const auto at = static_cast<std::size_t>(i);
  const double scale = p.inverse_temperature.empty() ? 1.0 : p.inverse_temperature[at];
  const auto target = static_cast<std::size_t>(p.target[at]);
  Row row;
  double max = -k_infinity, largest = 0;
  for (Int64 v = 0; v < p.v(); ++v) {
    double dot = 0, size = 0;
    for (Int64 k = 0; k < p.d(); ++k) {
      const double term = double{p.hidden.get(i, k)} * double{p.weight.get(v, k)};
      dot += term;
      size += std::fabs(term);
    }
    const double bias = p.bias.present() ? p.bias.get(v, 0) : 0.0f;
    row.z.push_back((dot + bias) * scale);
    max = std::max(max, row.z.back());
    if (std::isfinite(row.z.back())) {
      largest = std::max(largest, (size + std::fabs(bias)) * scale);
    }
  }
  double sum = 0;
  for (double z : row.z) sum += std::exp(z - max);
  const double rounding = (static_cast<double>(p.d()) / 8 + 2) * 0x1p-23 * largest;
  const double g = double{p.grad[at]} * scale;
  const double floor = p.hidden.type == kTypeFloat16 ? 0x1p-38 : 0x1p-126;
  const double unit = unit_of(p.hidden.type);
  for (std::size_t v = 0; v < row.z.size(); ++v) {
    const double logp = (row.z[v] - max) - std::log(sum);
    const double probability = std::exp(logp);
    const double bound = 2e-5 + 1e-6 * std::fabs(logp) + rounding;
    if (v == target) row.logp_bound = std::isfinite(logp) ? bound : 0;
    const bool masked = row.z[v] == -k_infinity && max > -k_infinity;
    const double dz = masked ? 0 : g * ((v == target ? 1 : 0) - probability);
    row.logp.push_back(logp);
    row.dz.push_back(dz);
    row.dz_bound.push_back(
        masked ? 0 : unit * std::fabs(dz) + std::fabs(g) * (probability * bound + floor));
  }
  return row;
}

// One gradient element: value, bound so far, and size of its terms.
struct Sum {
  double value = 0, bound = 0, size = 0;
  void add(double dz, double dz_bound, double other) {
    value += dz * other;
    bound += dz_bound * std::fabs(other);
    size += std::fabs(dz * other);
  }
  double total_bound(Int64 num_terms, Int64 type) const {
    return unit_of(type) * std::fabs(value) + bound +
           (static_cast<double>(num_terms) / 8 + 2) * 0x1p-23 * size;
  }
};

double check(const Kernel& kernel, const Problem& p, const std::string& what) {
  const Result got = run(kernel, p);
  const Int64 n = p.n(), d = p.d(), v = p.v();
  std::vector<Sum> weight(static_cast<std::size_t>(v * d)), bias(static_cast<std::size_t>(v));
  Worst worst;
  for (Int64 i = 0; i < n; ++i) {
    const Row row = oracle_row(p, i);
    const auto at = static_cast<std::size_t>(i);
    worst.see(got.logp[at], row.logp[static_cast<std::size_t>(p.target[at])], row.logp_bound,
              what + " logp " + std::to_string(i));
    EXPECT_FALSE(got.logp[at] > 0) << what;
    std::vector<Sum> hidden(static_cast<std::size_t>(d));
    for (Int64 c = 0; c < v; ++c) {
      const double dz = row.dz[static_cast<std::size_t>(c)];
      const double dz_bound = row.dz_bound[static_cast<std::size_t>(c)];
      for (Int64 k = 0; k < d; ++k) {
        hidden[static_cast<std::size_t>(k)].add(dz, dz_bound, p.weight.get(c, k));
        weight[static_cast<std::size_t>(c * d + k)].add(dz, dz_bound, p.hidden.get(i, k));
      }
      bias[static_cast<std::size_t>(c)].add(dz, dz_bound, 1);
    }
    for (Int64 k = 0; k < d; ++k) {
      const Sum& sum = hidden[static_cast<std::size_t>(k)];
      worst.see(got.grad_hidden.get(i, k), sum.value, sum.total_bound(v, p.hidden.type),
                what + " dhidden " + std::to_string(i) + "," + std::to_string(k));
    }
  }
  for (Int64 c = 0; c < v; ++c) {
    for (Int64 k = 0; k < d; ++k) {
      const Sum& sum = weight[static_cast<std::size_t>(c * d + k)];
      worst.see(got.grad_weight.get(c, k), sum.value, sum.total_bound(n, p.weight.type),
                what + " dweight " + std::to_string(c) + "," + std::to_string(k));
    }
    if (!p.bias.present()) continue;
    const Sum& sum = bias[static_cast<std::size_t>(c)];
    worst.see(got.grad_bias.get(c, 0), sum.value, sum.total_bound(n, p.bias.type),
              what + " dbias " + std::to_string(c));
  }
  return worst.ratio;
}

std::string text(Target target, const Problem& p) {
  return std::string(name(target)) + " type " + std::to_string(p.hidden.type) + " n " +
         std::to_string(p.n()) + " d " + std::to_string(p.d()) + " v " + std::to_string(p.v());
}

TEST(KernelCpuAccuracy, RandomInputsOfAllSizesAndTypes) {
  struct Size {
    Int64 n, d, v;
  };
  const Size sizes[] = {{1, 1, 1},     {3, 1, 2},      {2, 5, 1},       {17, 7, 129},
                        {50, 48, 128}, {49, 191, 257}, {130, 200, 131}, {9, 417, 1153}};
  for (Target target : levels()) {
    for (Int64 type : {kTypeFloat32, kTypeBfloat16, kTypeFloat16}) {
      unsigned seed = 0;
      for (const Size& size : sizes) {
        const Int64 bias = seed % 3 == 0 ? Int64{kTypeNone} : seed % 3 == 1 ? type : 1;
        const Problem p = random_problem(type, size.n, size.d, size.v, ++seed, bias);
        check(kernel(target, type), p, text(target, p));
      }
    }
  }
}

TEST(KernelCpuAccuracy, SeveralStripsAndWaves) {
  for (Target target : levels()) {
    const Problem p = random_problem(kTypeFloat32, 1300, 3, 1300);
    check(kernel(target, kTypeFloat32), p, text(target, p));
  }
}

TEST(KernelCpuAccuracy, CommonOffset) {
  for (Target target : levels()) {
    Problem p = random_problem(kTypeFloat32, 20, 64, 300);
    p.inverse_temperature.clear();
    for (Int64 v = 0; v < p.v(); ++v) p.bias.set(v, 0, 1e4f);
    check(kernel(target, kTypeFloat32), p, text(target, p));
  }
}

TEST(KernelCpuAccuracy, AllLogitsVeryNegative) {
  for (Target target : levels()) {
    for (Int64 v : {1, 130, 257}) {
      Problem p = random_problem(kTypeFloat32, 20, 64, v);
      for (Int64 c = 0; c < v; ++c) p.bias.set(c, 0, -250.0f + static_cast<float>(c % 100) - 50.0f);
      p.inverse_temperature.assign(20, 1.0f);
      check(kernel(target, kTypeFloat32), p, text(target, p));
    }
  }
}

TEST(KernelCpuAccuracy, OneDominatingLogit) {
  for (Target target : levels()) {
    Problem p = random_problem(kTypeFloat32, 20, 64, 300);
    p.bias.set(131, 0, 1000.0f);
    p.target[3] = 131;
    check(kernel(target, kTypeFloat32), p, text(target, p));
    const Result got = run_forward(kernel(target, kTypeFloat32), p);
    EXPECT_EQ(got.logp[3], 0.0f);
  }
}

// Equal terms make a long chain of additions err to one side; blocks keep it within the bound.
TEST(KernelCpuAccuracy, ConstantInputsAtLargeSizes) {
  for (Target target : levels()) {
    for (float value : {1.0f / 3.0f, 0.7f, 1.1f}) {
      Problem p = random_problem(kTypeFloat32, 2, 4096, 3);
      for (Int64 k = 0; k < p.d(); ++k) {
        for (Int64 i = 0; i < p.n(); ++i) p.hidden.set(i, k, value);
        for (Int64 v = 0; v < p.v(); ++v) p.weight.set(v, k, value + 1e-4f * static_cast<float>(v));
      }
      check(kernel(target, kTypeFloat32), p, text(target, p));
      // The other two products: long chains over the vocabulary and over the rows.
      Problem tall = random_problem(kTypeFloat32, 2000, 2, 3);
      Problem wide = random_problem(kTypeFloat32, 2, 2, 5000);
      for (Problem* q : {&tall, &wide}) {
        for (Int64 k = 0; k < q->d(); ++k) {
          for (Int64 i = 0; i < q->n(); ++i) q->hidden.set(i, k, value);
          for (Int64 v = 0; v < q->v(); ++v) q->weight.set(v, k, value);
        }
        for (Int64 v = 0; v < q->v(); ++v) q->bias.set(v, 0, 0.0f);
        q->target.assign(q->target.size(), 0);
        q->inverse_temperature.assign(q->target.size(), 1.0f);
        q->grad.assign(q->target.size(), value);
        check(kernel(target, kTypeFloat32), *q, text(target, *q));
      }
    }
  }
}

}  // namespace
}  // namespace rlk::test
