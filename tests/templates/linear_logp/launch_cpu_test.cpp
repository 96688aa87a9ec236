// SPDX-License-Identifier: Apache-2.0
// A call on the CPU through the op's own stages: threads change no bit, and nothing but the outputs
// is written. What the values are, tests/python/linear_logp tells.
#include "jit/build_key.hpp"
#include "jit/llvm_compiler.hpp"
#include "runtime/error.hpp"
#include "runtime/loader.hpp"
#include "runtime/thread_pool.hpp"
#include "templates/linear_logp/op.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <deque>
#include <map>
#include <random>

namespace rlk::test {
namespace {

using Int64 = std::int64_t;
using Shape = std::vector<Int64>;

class LaunchCpuTest : public ::testing::TestWithParam<Target> {
 protected:
  ~LaunchCpuTest() override { runtime::ThreadPool::set_num_threads(0); }

  // Dense, all ones inside, which is a NaN, and around it.
  Tensor output(DType dtype, const Shape& shape) {
    Tensor made = dense_tensor(nullptr, dtype, {}, shape);
    const auto bytes = static_cast<std::size_t>(made.num_elements()) * size_bytes(dtype);
    auto& memory = memory_.emplace_back(bytes + 2 * k_guard, std::byte{0xff});
    made.data = memory.data() + k_guard;
    return made;
  }

  Tensor input(DType dtype, const Shape& shape) {
    std::normal_distribution<float> normal(0, 0.3f);
    Tensor made = output(dtype, shape);
    for (Int64 i = 0; i < made.num_elements(); ++i) {
      const float value = normal(random_);
      // The upper half of a float is a bf16.
      const auto* bytes = reinterpret_cast<const std::byte*>(&value) + 4 - size_bytes(dtype);
      std::memcpy(static_cast<std::byte*>(made.data) + i * static_cast<Int64>(size_bytes(dtype)),
                  bytes, size_bytes(dtype));
    }
    return made;
  }

  LinearLogpCall make(Int64 rows, Int64 dim, Int64 vocab, DType dtype) {
    LinearLogpCall call;
    call.op = &templates::linear_logp_op;
    call.hidden = input(dtype, {rows, dim});
    call.weight = input(dtype, {vocab, dim});
    call.bias = input(DType::f32, {vocab});
    call.target = output(DType::i64, {rows});
    for (Int64 i = 0; i < rows; ++i) static_cast<Int64*>(call.target.data)[i] = i % vocab;
    call.log_prob = output(DType::f32, {rows});
    call.row_max = output(DType::f32, {rows});
    call.row_log_sum = output(DType::f32, {rows});
    return call;
  }

  // Of the generic variant, compiled once a process.
  static const LoadedKernel& kernel_of(const jit::Specialization& spec) {
    static std::map<std::string, LoadedKernel> known;
    const auto [at, is_new] = known.try_emplace(spec.text());
    LoadedKernel& kernel = at->second;
    if (!is_new) return kernel;
    kernel.target = spec.target;
    kernel.constants = spec.values;
    jit::LlvmCompiler compiler(RLK_LLVM_FOLDER);
    runtime::make_cpu_loader()->load(kernel, compiler.compile(jit::compile_request(spec)).code,
                                     spec.op->entries(spec.pass, Backend::cpu));
    return kernel;
  }

  void launch(const LinearLogpCall& call) {
    call.op->check(call);
    call.op->launch(kernel_of(call.op->specialize(call, GetParam(), {}).generic()), call, {});
  }

  // Everything there is after a forward and its backward.
  std::deque<std::vector<std::byte>> run(LinearLogpCall call) {
    launch(call);
    call.pass = jit::Pass::bwd;
    call.grad_output = call.log_prob;
    call.grad_hidden = output(call.hidden.dtype, {call.hidden.shape[0], call.hidden.shape[1]});
    call.grad_weight = output(call.weight.dtype, {call.weight.shape[0], call.weight.shape[1]});
    call.grad_bias = output(call.bias.dtype, {call.bias.shape[0]});
    launch(call);
    return memory_;
  }

  static const float* floats(const Tensor& tensor) {
    return static_cast<const float*>(tensor.data);
  }

  // bf16 of these sums.
  static void expect_rounded(const Tensor& found, const Tensor& sums) {
    for (Int64 i = 0; i < sums.num_elements(); ++i) {
      const auto bits = std::bit_cast<std::uint32_t>(floats(sums)[i]);
      const auto rounded = static_cast<std::uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
      EXPECT_EQ(static_cast<const std::uint16_t*>(found.data)[i], rounded);
    }
  }

  static constexpr std::size_t k_guard = 256;
  std::deque<std::vector<std::byte>> memory_;
  std::mt19937 random_;
};

TEST_P(LaunchCpuTest, ThreadsChangeNothingAndNothingElseIsWritten) {
  for (const auto& [rows, dim, vocab] :
       {std::array<Int64, 3>{1, 1, 1}, {70, 203, 301}, {1300, 3, 1300}, {3, 500, 2000}}) {
    for (const DType dtype : {DType::f32, DType::bf16}) {
      decltype(memory_) first;
      for (const int threads : {1, 7}) {
        SCOPED_TRACE(testing::Message()
                     << rows << " x " << dim << " x " << vocab << ", " << threads);
        runtime::ThreadPool::set_num_threads(threads);
        memory_.clear();
        random_.seed(1);
        const auto got = run(make(rows, dim, vocab, dtype));
        for (const auto& array : got) {
          const auto is_guard = [](std::byte byte) { return byte == std::byte{0xff}; };
          EXPECT_TRUE(std::all_of(array.begin(), array.begin() + k_guard, is_guard));
          EXPECT_TRUE(std::all_of(array.end() - k_guard, array.end(), is_guard));
        }
        if (first.empty()) first = got;
        EXPECT_TRUE(got == first);
      }
    }
  }
}

TEST_P(LaunchCpuTest, ARowWithoutAnUpstreamGradientMayHoldABadId) {
  LinearLogpCall call = make(3, 5, 20, DType::f32);
  launch(call);
  call.pass = jit::Pass::bwd;
  call.grad_output = input(DType::f32, {3});
  call.grad_hidden = output(DType::f32, {3, 5});
  auto* const target = static_cast<Int64*>(call.target.data);
  target[1] = Int64{1} << 40;
  EXPECT_THROW(launch(call), InvalidArgument);
  static_cast<float*>(call.grad_output.data)[1] = -0.0f;
  launch(call);
  const auto* const grad = static_cast<const float*>(call.grad_hidden.data);
  for (int i = 0; i < 5; ++i) {
    EXPECT_EQ(grad[5 + i], 0.0f);
    EXPECT_NE(grad[i], 0.0f);
    EXPECT_NE(grad[10 + i], 0.0f);
  }
}

// One more than a panel of every level, so that the last panel of rows is a narrow one.
TEST_P(LaunchCpuTest, WhatIsKeptChangesNoBits) {
  constexpr Int64 k_rows = 97, k_dim = 5, k_vocab = 1100;
  for (const bool some : {false, true}) {
    LinearLogpCall call = make(k_rows, k_dim, k_vocab, DType::f32);
    if (some) static_cast<Int64*>(call.target.data)[7] = -100;
    const Tensor upstream = input(DType::f32, {k_rows});
    if (some) static_cast<float*>(upstream.data)[3] = 0.0f;
    std::vector<std::vector<float>> first;
    for (Int64 segments = 0; segments <= 8; ++segments) {
      SCOPED_TRACE(testing::Message() << segments << " segments, some rows: " << some);
      call.pass = jit::Pass::fwd;
      call.kept = {};
      const Int64 cols = segments * linear_logp_kept_step(call);
      if (segments > 0) call.kept = output(DType::f32, {k_rows, cols});
      launch(call);
      LinearLogpCall backward = call;
      backward.pass = jit::Pass::bwd;
      backward.grad_output = upstream;
      backward.grad_hidden = output(DType::f32, {k_rows, k_dim});
      backward.grad_weight = output(DType::f32, {k_vocab, k_dim});
      backward.grad_bias = output(DType::f32, {k_vocab});
      launch(backward);
      std::vector<std::vector<float>> found;
      for (const Tensor& grad : {backward.grad_hidden, backward.grad_weight, backward.grad_bias}) {
        const auto* const data = static_cast<const float*>(grad.data);
        found.emplace_back(data, data + grad.num_elements());
      }
      if (segments == 0) first = found;
      EXPECT_EQ(found, first);
      if (segments == 0) continue;
      // It is what the backward reads: another logit there, another gradient.
      static_cast<float*>(call.kept.data)[1] += 1.0f;  // of the second row, in its first column
      launch(backward);
      EXPECT_NE(static_cast<const float*>(backward.grad_bias.data)[0], first[2][0]);
    }
  }
}

TEST_P(LaunchCpuTest, SumsOfTheWeightAreAddedOnceToWhatIsThere) {
  LinearLogpCall call = make(70, 53, 301, DType::bf16);
  launch(call);
  call.pass = jit::Pass::bwd;
  call.grad_output = input(DType::f32, {70});
  const auto sums_into = [&](float before) {
    call.accumulates = true;
    call.grad_weight = output(DType::f32, {301, 53});
    auto* const data = static_cast<float*>(call.grad_weight.data);
    std::fill_n(data, call.grad_weight.num_elements(), before);
    launch(call);
    return call.grad_weight;
  };
  const Tensor sums = sums_into(0.0f), more = sums_into(0.1f);
  for (Int64 i = 0; i < sums.num_elements(); ++i) {
    EXPECT_EQ(floats(more)[i], 0.1f + floats(sums)[i]);
  }
  call.accumulates = false;
  call.grad_weight = output(DType::bf16, {301, 53});
  launch(call);
  expect_rounded(call.grad_weight, sums);
}

TEST_P(LaunchCpuTest, GradientsMayBeTheSumsAsTheyAre) {
  LinearLogpCall call = make(70, 53, 301, DType::bf16);
  launch(call);
  call.pass = jit::Pass::bwd;
  call.grad_output = input(DType::f32, {70});
  const auto run_in = [&](DType dtype) {
    call.grad_hidden = output(dtype, {70, 53});
    call.grad_weight = output(dtype, {301, 53});
    launch(call);
    return std::pair{call.grad_hidden, call.grad_weight};
  };
  const auto sums = run_in(DType::f32), rounded = run_in(DType::bf16);
  expect_rounded(rounded.first, sums.first);
  expect_rounded(rounded.second, sums.second);
}

std::vector<Target> levels() {
  std::vector<Target> all;
  for (const Target target : cpu_targets()) {
    if (host_cpu_target() && target <= *host_cpu_target()) all.push_back(target);
  }
  return all;
}

INSTANTIATE_TEST_SUITE_P(Levels, LaunchCpuTest, testing::ValuesIn(levels()), [](const auto& level) {
  std::string text(name(level.param));
  std::ranges::replace(text, '-', '_');
  return text;
});

}  // namespace
}  // namespace rlk::test
