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
  std::vector<double> dz, dz_bound;
  double logp = 0, entropy = 0, lse = 0;
  double logp_bound = 0, entropy_bound = 0, lse_bound = 0;
};

double at_or_zero(const std::vector<float>& values, std::size_t i) {
  return values.empty() ? 0.0 : values[i];
}

// Row i in float64, with bounds of its results and of each dZ.
Row oracle_row(const Problem& p, Int64 i) {
  const auto at = static_cast<std::size_t>(i);
  const double inverse = p.inverse_temperature.empty() ? 1.0 : p.inverse_temperature[at];
  const double scale = p.logit_scale, cap = p.softcap;
  const bool has_options = cap != 0 || scale != 1;
  const double chain = (static_cast<double>(p.d()) / 8 + (has_options ? 6 : 2)) * 0x1p-23;
  const auto target = static_cast<std::size_t>(p.target[at]);
  std::vector<double> z, slope, slope_error;
  double max = -k_infinity, largest = 0;
  for (Int64 v = 0; v < p.v(); ++v) {
    double dot = 0, size = 0;
    for (Int64 k = 0; k < p.d(); ++k) {
      const double term = double{p.hidden.get(i, k)} * double{p.weight.get(v, k)};
      dot += term;
      size += std::fabs(term);
    }
    const double bias = p.bias.present() ? p.bias.get(v, 0) : 0.0f;
    const double x = scale * (dot + bias);
    const double x_size = std::fabs(scale) * (size + std::fabs(bias));
    const double sech = cap == 0 ? 1 : 1 / std::cosh(x / cap);
    z.push_back((cap == 0 ? x : cap * std::tanh(x / cap)) * inverse);
    slope.push_back(sech * sech);
    slope_error.push_back(cap == 0 ? 0 : 2 * std::fabs(std::tanh(x / cap)) * chain * x_size / cap);
    max = std::max(max, z.back());
    if (std::isfinite(z.back())) largest = std::max(largest, x_size * inverse);
  }
  double sum = 0;
  for (double one : z) sum += std::exp(one - max);
  const auto logp_of = [&](std::size_t v) { return (z[v] - max) - std::log(sum); };
  Row row;
  for (std::size_t v = 0; v < z.size(); ++v) {
    const double l = logp_of(v);
    if (l != -k_infinity) row.entropy -= std::exp(l) * l;
  }
  double spread = 0;  // how far an error of each logit reaches into the entropy
  for (std::size_t v = 0; v < z.size(); ++v) {
    const double l = logp_of(v);
    if (l != -k_infinity) spread += std::exp(l) * std::fabs(l + row.entropy);
  }
  row.logp = logp_of(target);
  row.lse = max + std::log(sum);
  const auto bound_of = [](double value, double rounding) {
    return 2e-5 + 1e-6 * std::fabs(value) + rounding;
  };
  const double rounding = chain * largest;
  row.logp_bound = std::isfinite(row.logp) ? bound_of(row.logp, rounding) : 0;
  row.entropy_bound = bound_of(row.entropy, rounding * spread);
  row.lse_bound = bound_of(row.lse, rounding);
  const double factor = inverse * scale;
  const double g = at_or_zero(p.grad, at) * factor;
  const double g_entropy = at_or_zero(p.grad_entropy, at) * factor;
  const double g_lse = at_or_zero(p.grad_lse, at) * factor;
  const double floor = p.hidden.type == kTypeFloat16 ? 0x1p-38 : 0x1p-126;
  const double unit = unit_of(p.hidden.type);
  for (std::size_t v = 0; v < z.size(); ++v) {
    const double l = logp_of(v), probability = std::exp(l), away = l + row.entropy;
    const bool masked = z[v] == -k_infinity && max > -k_infinity;
    const double of_p = g_lse - g - (masked ? 0 : g_entropy * away);
    const double of_z = (v == target ? g : 0) + probability * of_p;
    const double dz = masked ? 0 : of_z * slope[v];
    const double size =
        std::fabs(g) + std::fabs(g_lse) + std::fabs(g_entropy) * (std::fabs(away) + 2);
    const double error =
        slope[v] * probability * size * (bound_of(l, rounding) + rounding * spread) + floor * size +
        std::fabs(dz) * slope_error[v];
    row.dz.push_back(dz);
    row.dz_bound.push_back(masked ? 0 : unit * std::fabs(dz) + error);
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
    const double half_step = type == kTypeFloat16 ? 0x1p-25 : 0;  // of its subnormals
    return unit_of(type) * std::fabs(value) + half_step + bound +
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
    const std::string number = std::to_string(i);
    worst.see(got.logp[at], row.logp, row.logp_bound, what + " logp " + number);
    if (p.entropy)
      worst.see(got.entropy[at], row.entropy, row.entropy_bound, what + " H " + number);
    if (p.lse) worst.see(got.lse[at], row.lse, row.lse_bound, what + " lse " + number);
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

TEST(KernelCpuAccuracy, AllOptions) {
  for (Target target : levels()) {
    for (Int64 type : {kTypeFloat32, kTypeBfloat16, kTypeFloat16}) {
      unsigned seed = 0;
      for (Int64 v : {1, 2, 129, 1153}) {
        Problem p = with_options(random_problem(type, 9, 70, v, ++seed));
        check(kernel(target, type), p, text(target, p));
        p.softcap = 30;  // hardly capped
        p.grad.clear();
        check(kernel(target, type), p, text(target, p) + " softcap 30");
        p.softcap = 0.1f;  // mostly flat
        p.logit_scale = -2;
        check(kernel(target, type), p, text(target, p) + " softcap 0.1");
        p.softcap = 0;
        p.logit_scale = 0;
        check(kernel(target, type), p, text(target, p) + " logit scale 0");
      }
    }
  }
}

TEST(KernelCpuAccuracy, EachOptionAlone) {
  const Problem all = with_options(random_problem(kTypeFloat32, 20, 64, 300));
  for (Target target : levels()) {
    for (int option = 0; option < 4; ++option) {
      Problem p = random_problem(kTypeFloat32, 20, 64, 300);
      if (option == 0) p.softcap = all.softcap;
      if (option == 1) p.logit_scale = all.logit_scale;
      p.entropy = option == 2;
      p.lse = option == 3;
      if (p.entropy) p.grad_entropy = all.grad_entropy;
      if (p.lse) p.grad_lse = all.grad_lse;
      check(kernel(target, kTypeFloat32), p, text(target, p) + " option " + std::to_string(option));
      // The gradient of one output alone.
      if (p.entropy || p.lse) p.grad.clear();
      check(kernel(target, kTypeFloat32), p, text(target, p) + " alone " + std::to_string(option));
    }
  }
}

TEST(KernelCpuAccuracy, EntropyOfVeryUnequalAndVeryEqualLogits) {
  for (Target target : levels()) {
    for (float spread : {0.0f, 1e-3f, 30.0f, 1000.0f}) {
      Problem p = with_options(random_problem(kTypeFloat32, 5, 8, 700));
      p.softcap = 0;
      p.logit_scale = 1;
      for (Int64 v = 0; v < p.v(); ++v) {
        p.bias.set(v, 0, -spread * static_cast<float>(v % 50) / 50.0f);
        for (Int64 k = 0; k < p.d(); ++k) p.weight.set(v, k, 0.0f);
      }
      check(kernel(target, kTypeFloat32), p, text(target, p) + " spread " + std::to_string(spread));
    }
  }
}

TEST(KernelCpuAccuracy, SeveralStripsAndWaves) {
  for (Target target : levels()) {
    const Problem p = random_problem(kTypeFloat32, 1300, 3, 1300);
    check(kernel(target, kTypeFloat32), p, text(target, p));
    check(kernel(target, kTypeFloat32), with_options(p), text(target, p) + " with options");
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
