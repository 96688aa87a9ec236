// SPDX-License-Identifier: Apache-2.0
#include "tests/templates/linear_logp/kernel_fixture.hpp"

#include "jit/llvm_compiler.hpp"
#include "runtime/loader.hpp"
#include "templates/registry.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <map>
#include <numeric>
#include <stdexcept>
#include <tuple>
#include <utility>

namespace rlk::test {
namespace {

constexpr float k_nan = std::numeric_limits<float>::quiet_NaN();

}  // namespace

std::uint16_t narrow(float value, Int64 type) {
  const int mantissa_bits = type == kTypeBfloat16 ? 7 : 10;
  const int min_exponent = type == kTypeBfloat16 ? -126 : -14;
  const float largest = type == kTypeBfloat16 ? 0x1.fep127f : 65504.0f;
  const auto sign = static_cast<std::uint16_t>(std::signbit(value) ? 0x8000 : 0);
  const std::uint16_t infinity = type == kTypeBfloat16 ? 0x7f80 : 0x7c00;
  if (std::isnan(value)) return sign | infinity | (1 << (mantissa_bits - 1));
  const double x = std::fabs(static_cast<double>(value));
  if (x == 0) return sign;
  int exponent = std::max(std::isinf(value) ? 200 : std::ilogb(x), min_exponent);
  // In units of the last place; nearbyint rounds to even.
  double units = std::isinf(value) ? 0 : std::nearbyint(std::ldexp(x, mantissa_bits - exponent));
  if (std::isinf(value) || std::ldexp(units, exponent - mantissa_bits) > largest) {
    return sign | infinity;
  }
  const int biased = exponent - min_exponent;  // 0 for the lowest binade and for subnormals
  return static_cast<std::uint16_t>(sign | ((biased << mantissa_bits) + static_cast<int>(units)));
}

float widen(std::uint16_t bits, Int64 type) {
  const int mantissa_bits = type == kTypeBfloat16 ? 7 : 10;
  const int min_exponent = type == kTypeBfloat16 ? -126 : -14;
  const int field = (bits & 0x7fff) >> mantissa_bits;
  const int mantissa = bits & ((1 << mantissa_bits) - 1);
  const float sign = (bits & 0x8000) != 0 ? -1.0f : 1.0f;
  if (field == (type == kTypeBfloat16 ? 255 : 31)) {
    return mantissa != 0 ? k_nan : sign * std::numeric_limits<float>::infinity();
  }
  const int units = field == 0 ? mantissa : mantissa + (1 << mantissa_bits);
  return sign * std::ldexp(static_cast<float>(units),
                           std::max(field - 1, 0) + min_exponent - mantissa_bits);
}

Matrix::Matrix(Int64 of_type, Int64 num_rows, Int64 num_cols)
    : Matrix(of_type, num_rows, num_cols, num_cols, 1) {}

Matrix::Matrix(Int64 of_type, Int64 num_rows, Int64 num_cols, Int64 row_step, Int64 col_step)
    : type(of_type), rows(num_rows), cols(num_cols), row_stride(row_step), col_stride(col_step) {
  const auto low = [](Int64 count, Int64 step) { return std::min<Int64>(0, (count - 1) * step); };
  const auto high = [](Int64 count, Int64 step) { return std::max<Int64>(0, (count - 1) * step); };
  constexpr Int64 guard = 16;
  first_ = guard - low(rows, row_stride) - low(cols, col_stride);
  const Int64 count = first_ + high(rows, row_stride) + high(cols, col_stride) + 1 + guard;
  // All ones is a NaN of every type.
  bytes_.assign(static_cast<std::size_t>(count * size()), std::byte{0xff});
}

float Matrix::get(Int64 row, Int64 col) const {
  const std::byte* at = bytes_.data() + (first_ + row * row_stride + col * col_stride) * size();
  if (type == kTypeFloat32) {
    float value;
    std::memcpy(&value, at, 4);
    return value;
  }
  std::uint16_t bits;
  std::memcpy(&bits, at, 2);
  return widen(bits, type);
}

void Matrix::set(Int64 row, Int64 col, float value) {
  std::byte* at = bytes_.data() + (first_ + row * row_stride + col * col_stride) * size();
  if (type == kTypeFloat32) {
    std::memcpy(at, &value, 4);
  } else {
    const std::uint16_t bits = narrow(value, type);
    std::memcpy(at, &bits, 2);
  }
}

bool Matrix::operator==(const Matrix& other) const {
  if (rows != other.rows || cols != other.cols) return false;
  for (Int64 i = 0; i < rows; ++i) {
    for (Int64 j = 0; j < cols; ++j) {
      if (!same_bits(get(i, j), other.get(i, j))) return false;
    }
  }
  return true;
}

bool Matrix::untouched_outside() const {
  std::vector<std::byte> rest = bytes_;
  for (Int64 i = 0; i < rows; ++i) {
    for (Int64 j = 0; j < cols; ++j) {
      std::memset(rest.data() + (first_ + i * row_stride + j * col_stride) * size(), 0xff,
                  static_cast<std::size_t>(size()));
    }
  }
  return std::ranges::all_of(rest, [](std::byte b) { return b == std::byte{0xff}; });
}

Problem random_problem(Int64 type, Int64 n, Int64 d, Int64 v, unsigned seed, Int64 bias_type) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::uniform_real_distribution<float> temperature(0.5f, 2.0f);
  Problem p;
  p.hidden = Matrix(type, n, d);
  p.weight = Matrix(type, v, d);
  for (Int64 i = 0; i < n; ++i) {
    for (Int64 k = 0; k < d; ++k) p.hidden.set(i, k, normal(random));
    p.target.push_back(static_cast<Int64>(random() % static_cast<std::uint64_t>(v)));
    p.inverse_temperature.push_back(1.0f / temperature(random));
    p.grad.push_back(normal(random));
  }
  const float scale = 1.0f / std::sqrt(static_cast<float>(d));
  for (Int64 i = 0; i < v; ++i) {
    for (Int64 k = 0; k < d; ++k) p.weight.set(i, k, scale * normal(random));
  }
  if (bias_type != kTypeNone) {
    p.bias = Matrix(bias_type, v, 1);
    for (Int64 i = 0; i < v; ++i) p.bias.set(i, 0, normal(random));
  }
  return p;
}

Problem with_options(Problem problem, unsigned seed) {
  std::mt19937 random(seed + 77);
  std::normal_distribution<float> normal;
  problem.softcap = 1.5f;
  problem.logit_scale = 0.75f;
  problem.entropy = problem.lse = true;
  for (Int64 i = 0; i < problem.n(); ++i) {
    problem.grad_entropy.push_back(normal(random));
    problem.grad_lse.push_back(normal(random));
  }
  return problem;
}

Problem take_rows(const Problem& problem, const std::vector<Int64>& rows) {
  Problem p = problem;
  p.hidden = Matrix(problem.hidden.type, static_cast<Int64>(rows.size()), problem.d());
  p.target.clear();
  const auto take = [&](std::vector<float>& values) {
    const std::vector<float> all = std::exchange(values, {});
    for (Int64 row : rows) {
      if (!all.empty()) values.push_back(all[static_cast<std::size_t>(row)]);
    }
  };
  for (auto* values : {&p.inverse_temperature, &p.grad, &p.grad_entropy, &p.grad_lse}) {
    take(*values);
  }
  for (std::size_t i = 0; i < rows.size(); ++i) {
    for (Int64 k = 0; k < problem.d(); ++k) {
      p.hidden.set(static_cast<Int64>(i), k, problem.hidden.get(rows[i], k));
    }
    p.target.push_back(problem.target[static_cast<std::size_t>(rows[i])]);
  }
  return p;
}

std::vector<Target> levels() {
  std::vector<Target> all;
  for (Target target : cpu_targets()) {
    if (host_cpu_target() && target <= *host_cpu_target()) all.push_back(target);
  }
  return all;
}

const Kernel& kernel(Target target, Int64 type, Int64 v, Int64 d, Options options) {
  static std::map<std::tuple<Target, Int64, Int64, Int64, Options>, Kernel> known;
  static std::vector<LoadedKernel> images;  // keep the code mapped
  const auto [at, is_new] = known.try_emplace({target, type, v, d, options});
  if (!is_new) return at->second;
  static jit::LlvmCompiler compiler(RLK_LLVM_FOLDER);
  static const auto loader = runtime::make_cpu_loader();
  const auto* source = templates::find_source("linear_logp", target);
  if (source == nullptr) throw std::runtime_error("no bitcode of linear_logp");
  const auto load = [&](auto& steps) {
    using Steps = std::remove_reference_t<decltype(steps)>;
    jit::CompileRequest request;
    request.name = "linear_logp";
    request.target = name(target);
    request.source = source->code;
    request.constants = {{"kX", type},
                         {"kV", v},
                         {"kD", d},
                         {"kSoftcap", options.softcap},
                         {"kLogitScale", options.logit_scale},
                         {"kEntropy", options.entropy}};
    request.entries.assign(std::begin(Steps::entries), std::end(Steps::entries));
    LoadedKernel loaded;
    loader->load(loaded, compiler.compile(request).code, Steps::entries);
    std::memcpy(&steps, loaded.entries.data(), sizeof steps);
    images.push_back(loaded);
  };
  Kernel& made = at->second;
  made.target = target;
  made.tile = linear_logp_cpu_tile(target == Target::x86_64_v4   ? 16
                                   : target == Target::x86_64_v3 ? 8
                                                                 : 4);
  load(made.fwd);
  load(made.bwd);
  return made;
}

namespace {

struct Compact {
  std::vector<Int64> offsets, target;
  std::vector<float> inverse_temperature, grad, grad_entropy, grad_lse;
};

// The caller's part: what the op's launch does from a call.
LinearLogpCpuOperands operands_of(const Problem& p, Compact& compact, Result& result) {
  LinearLogpCpuOperands o{};
  o.vocab = p.v();
  o.dim = p.d();
  o.all_rows = p.n();
  o.hidden = p.hidden.data();
  o.hidden_row_stride = p.hidden.row_stride;
  o.hidden_col_stride = p.hidden.col_stride;
  o.weight = p.weight.data();
  o.weight_row_stride = p.weight.row_stride;
  o.weight_col_stride = p.weight.col_stride;
  if (p.bias.present()) {
    o.bias = p.bias.data();
    o.bias_type = p.bias.type;
    o.bias_stride = p.bias.row_stride;
  }
  o.target = p.target.data();
  o.inverse_temperature = p.inverse_temperature.empty() ? nullptr : p.inverse_temperature.data();
  o.softcap = p.softcap;
  o.inverse_softcap = p.softcap == 0 ? 0 : 1 / p.softcap;
  o.logit_scale = p.logit_scale;
  const auto data = [](const std::vector<float>& v) { return v.empty() ? nullptr : v.data(); };
  o.grad = data(p.grad);
  o.grad_entropy = data(p.grad_entropy);
  o.grad_lse = data(p.grad_lse);
  if (!p.active.empty()) {
    for (Int64 row : p.active) {
      const auto i = static_cast<std::size_t>(row);
      compact.offsets.push_back(row * p.hidden.row_stride);
      compact.target.push_back(p.target[i]);
      compact.inverse_temperature.push_back(o.inverse_temperature ? p.inverse_temperature[i]
                                                                  : 1.0f);
      if (o.grad) compact.grad.push_back(p.grad[i]);
      if (o.grad_entropy) compact.grad_entropy.push_back(p.grad_entropy[i]);
      if (o.grad_lse) compact.grad_lse.push_back(p.grad_lse[i]);
    }
    o.all_rows = static_cast<Int64>(p.active.size());
    o.rows = p.active.data();
    o.hidden_offsets = compact.offsets.data();
    o.target = compact.target.data();
    o.inverse_temperature = compact.inverse_temperature.data();
    o.grad = data(compact.grad);
    o.grad_entropy = data(compact.grad_entropy);
    o.grad_lse = data(compact.grad_lse);
  }
  o.logp = result.logp.data();
  o.row_max = result.row_max.data();
  o.row_log_sum = result.row_log_sum.data();
  if (p.entropy) o.entropy = result.entropy.data();
  if (p.lse) o.lse = result.lse.data();
  return o;
}

}  // namespace

Result run_forward(const Kernel& kernel, const Problem& problem) {
  return run(kernel, problem, {false, false, false});
}

Result run(const Kernel& kernel, const Problem& problem, Needs needs) {
  Result result;
  const auto n = static_cast<std::size_t>(problem.n());
  result.logp.assign(n, k_nan);
  result.row_max.assign(n, k_nan);
  result.row_log_sum.assign(n, k_nan);
  result.entropy.assign(n, k_nan);
  result.lse.assign(n, k_nan);
  Compact compact;
  LinearLogpCpuOperands operands = operands_of(problem, compact, result);
  auto& pool = runtime::ThreadPool::instance();
  launch_linear_logp_fwd(kernel.fwd, kernel.tile, operands, pool);
  if (needs.hidden) {
    result.grad_hidden = Matrix(problem.hidden.type, problem.n(), problem.d(), problem.d() + 3, 1);
    operands.grad_hidden = result.grad_hidden.data();
    operands.grad_hidden_row_stride = result.grad_hidden.row_stride;
    operands.grad_hidden_col_stride = 1;
  }
  if (needs.weight) {
    // Column-major, so that both ways of storing are tried.
    result.grad_weight = Matrix(problem.weight.type, problem.v(), problem.d(), 1, problem.v());
    operands.grad_weight = result.grad_weight.data();
    operands.grad_weight_row_stride = 1;
    operands.grad_weight_col_stride = problem.v();
  }
  if (needs.bias && problem.bias.present()) {
    result.grad_bias = Matrix(problem.bias.type, problem.v(), 1);
    operands.grad_bias = result.grad_bias.data();
    operands.grad_bias_stride = 1;
  }
  launch_linear_logp_bwd(kernel.bwd, kernel.tile, operands, pool);
  for (const Matrix* output : {&result.grad_hidden, &result.grad_weight, &result.grad_bias}) {
    if (!output->untouched_outside()) throw std::runtime_error("wrote outside an output");
  }
  return result;
}

bool same_bits(float a, float b) { return std::memcmp(&a, &b, 4) == 0; }

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * 4) == 0;
}

}  // namespace rlk::test
