// SPDX-License-Identifier: Apache-2.0
// Compiles linear_logp's CPU kernels for any level, type and sizes, and runs them on test problems.
#pragma once

#include "runtime/target.hpp"
#include "templates/linear_logp/cpu_args.h"
#include "templates/linear_logp/launch_cpu.hpp"

#include <cstddef>
#include <cstdint>
#include <random>
#include <vector>

namespace rlk::test {

// A [rows, cols] array of a storage type with any strides. Elements outside the view are NaN.
class Matrix {
 public:
  Matrix() = default;
  Matrix(Int64 type, Int64 rows, Int64 cols);  // dense
  Matrix(Int64 type, Int64 rows, Int64 cols, Int64 row_stride, Int64 col_stride);

  float get(Int64 row, Int64 col) const;
  void set(Int64 row, Int64 col, float value);  // rounded to the type
  const void* data() const { return bytes_.data() + first_ * size(); }
  void* data() { return bytes_.data() + first_ * size(); }
  Int64 size() const { return type == kTypeFloat32 ? 4 : 2; }
  bool present() const { return rows > 0; }
  bool operator==(const Matrix& other) const;  // bits of the elements
  bool untouched_outside() const;              // nothing but the elements was written

  Int64 type = kTypeNone;
  Int64 rows = 0;
  Int64 cols = 0;
  Int64 row_stride = 0;
  Int64 col_stride = 0;

 private:
  std::vector<std::byte> bytes_;
  Int64 first_ = 0;  // element (0, 0)
};

// bf16 or fp16 bits of a float, by the definition and not by the kernels' tricks; and back.
std::uint16_t narrow(float value, Int64 type);
float widen(std::uint16_t bits, Int64 type);

struct Problem {
  Matrix hidden;  // [n, d]
  Matrix weight;  // [v, d]
  Matrix bias;    // [v, 1] or absent
  std::vector<Int64> target;
  std::vector<float> inverse_temperature;  // may be empty
  float softcap = 0;                       // 0: none
  float logit_scale = 1;
  bool entropy = false, lse = false;                // asked for in the forward
  std::vector<float> grad, grad_entropy, grad_lse;  // may be empty
  std::vector<Int64> active;                        // rows that count; empty: all

  Int64 n() const { return hidden.rows; }
  Int64 d() const { return hidden.cols; }
  Int64 v() const { return weight.rows; }
};

// Normal hidden, weight of variance 1/d, per-row temperature, random targets and gradients.
Problem random_problem(Int64 type, Int64 n, Int64 d, Int64 v, unsigned seed = 1,
                       Int64 bias_type = kTypeFloat32);
// The same with softcap, logit scale, entropy and lse, and a gradient of each output.
Problem with_options(Problem problem, unsigned seed = 1);
// The rows of `rows`, in that order.
Problem take_rows(const Problem& problem, const std::vector<Int64>& rows);

struct Result {
  std::vector<float> logp, row_max, row_log_sum, entropy, lse;
  Matrix grad_hidden, grad_weight, grad_bias;
};

struct Kernel {
  Target target;
  LinearLogpCpuTile tile;
  LinearLogpFwdSteps fwd;
  LinearLogpBwdSteps bwd;
};

// Levels of this processor.
std::vector<Target> levels();
// 0: without, 1: with, -1: at run time. A backward has entropy where that has a gradient.
struct Options {
  Int64 softcap = -1, logit_scale = -1, entropy = -1;
  auto operator<=>(const Options&) const = default;
};
// Compiled once a process. -1: the generic variant's size.
const Kernel& kernel(Target target, Int64 type, Int64 v = -1, Int64 d = -1, Options options = {});

struct Needs {
  bool hidden = true, weight = true, bias = true;
};
// Forward alone, and forward with backward. Outputs start as NaN; rows that are not active stay so.
Result run_forward(const Kernel& kernel, const Problem& problem);
Result run(const Kernel& kernel, const Problem& problem, Needs needs = {});

bool same_bits(const std::vector<float>& a, const std::vector<float>& b);
bool same_bits(float a, float b);

}  // namespace rlk::test
