// SPDX-License-Identifier: Apache-2.0
// Time of linear_logp's CPU kernels alone, a level, type and pass each: no Python, no dispatcher.
//
//   rlk_bench_cpu_kernel --rows=512 --dim=1024 --vocab=32000 --threads=2 [Google Benchmark's flags]
//
// GFLOPS counts the products (2 N V D forward, 6 N V D backward, which recomputes the logits).
#include "jit/llvm_compiler.hpp"
#include "runtime/loader.hpp"
#include "runtime/target.hpp"
#include "templates/linear_logp/launch_cpu.hpp"
#include "templates/registry.hpp"

#include <benchmark/benchmark.h>

#include <bit>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

namespace rlk {
namespace {

Int64 rows = 512, dim = 1024, vocab = 32000, threads = 2;

// Takes --name=value of ours out of argv.
void read_flag(int& argc, char** argv, const std::string& flag, Int64& value) {
  const std::string prefix = "--" + flag + "=";
  int kept = 0;
  for (int i = 0; i < argc; ++i) {
    if (std::strncmp(argv[i], prefix.c_str(), prefix.size()) == 0) {
      value = std::atoll(argv[i] + prefix.size());
    } else {
      argv[kept++] = argv[i];
    }
  }
  argc = kept;
}

// Operands and outputs. Each 16-bit half of a float is 0x3c00 to 0x3cff and a sign, so that the
// same memory holds small normal numbers of all three types.
struct Buffers {
  std::vector<float> hidden, weight, logp, row_max, row_log_sum, grad_hidden, grad_weight;
  std::vector<float> grad;
  std::vector<Int64> target;
};

Buffers& buffers() {
  static Buffers all = [] {
    Buffers b;
    std::mt19937 random(1);
    const auto fill = [&](std::vector<float>& to, Int64 count) {
      to.resize(static_cast<std::size_t>(count));
      for (float& x : to) {
        x = std::bit_cast<float>((static_cast<std::uint32_t>(random()) & 0x80ff80ffu) |
                                 0x3c003c00u);
      }
    };
    const auto n = static_cast<std::size_t>(rows);
    fill(b.hidden, rows * dim);
    fill(b.weight, vocab * dim);
    fill(b.grad, rows);
    for (Int64 i = 0; i < rows; ++i) b.target.push_back(i % vocab);
    for (auto* out : {&b.logp, &b.row_max, &b.row_log_sum}) out->resize(n);
    b.grad_hidden.resize(b.hidden.size());
    b.grad_weight.resize(b.weight.size());
    return b;
  }();
  return all;
}

LinearLogpCpuOperands operands() {
  Buffers& b = buffers();
  LinearLogpCpuOperands o{};
  o.vocab = vocab;
  o.dim = dim;
  o.all_rows = rows;
  o.hidden = b.hidden.data();
  o.weight = b.weight.data();
  o.grad_hidden = b.grad_hidden.data();
  o.grad_weight = b.grad_weight.data();
  o.grad_hidden_type = o.grad_weight_type = 1;  // fp32
  o.hidden_row_stride = o.weight_row_stride = dim;
  o.grad_hidden_row_stride = o.grad_weight_row_stride = dim;
  o.hidden_col_stride = o.weight_col_stride = 1;
  o.grad_hidden_col_stride = o.grad_weight_col_stride = 1;
  o.target = b.target.data();
  o.grad = b.grad.data();
  o.logp = b.logp.data();
  o.row_max = b.row_max.data();
  o.row_log_sum = b.row_log_sum.data();
  return o;
}

struct Variant {
  Target target;
  Int64 type;
  bool specialized;
};

template <class Steps>
Steps compile(const Variant& variant, benchmark::State& state) {
  static jit::LlvmCompiler compiler(RLK_LLVM_FOLDER);
  static const auto loader = runtime::make_cpu_loader();
  static std::vector<LoadedKernel> images;  // keep the code mapped
  const auto* source = templates::find_source("linear_logp", variant.target);
  jit::CompileRequest request;
  request.name = "linear_logp";
  request.target = name(variant.target);
  request.source = source->code;
  request.constants = {{"kX", variant.type},
                       {"kV", variant.specialized ? vocab : -1},
                       {"kD", variant.specialized ? dim : -1}};
  request.entries.assign(std::begin(Steps::entries), std::end(Steps::entries));
  const jit::CompiledCode code = compiler.compile(request);
  state.counters["compile_ms"] = code.stats.compile_ms;
  state.counters["code_bytes"] = static_cast<double>(code.stats.code_bytes);
  images.emplace_back();
  loader->load(images.back(), code.code, Steps::entries);
  Steps steps;
  std::memcpy(&steps, images.back().entries.data(), sizeof steps);
  return steps;
}

LinearLogpCpuTile tile_of(Target target) {
  return linear_logp_cpu_tile(target == Target::x86_64_v4   ? 16
                              : target == Target::x86_64_v3 ? 8
                                                            : 4);
}

void count_flops(benchmark::State& state, double per_logit) {
  const double flops =
      per_logit * static_cast<double>(rows) * static_cast<double>(dim) * static_cast<double>(vocab);
  state.counters["GFLOPS"] = benchmark::Counter(
      flops * 1e-9 * static_cast<double>(state.iterations()), benchmark::Counter::kIsRate);
}

void forward(benchmark::State& state, const Variant& variant) {
  const auto steps = compile<LinearLogpFwdSteps>(variant, state);
  const LinearLogpCpuOperands o = operands();
  for (auto _ : state) {
    launch_linear_logp_fwd(steps, tile_of(variant.target), o, runtime::ThreadPool::instance());
  }
  count_flops(state, 2);
}

void backward(benchmark::State& state, const Variant& variant) {
  const auto steps = compile<LinearLogpBwdSteps>(variant, state);
  const LinearLogpCpuOperands o = operands();
  for (auto _ : state) {
    launch_linear_logp_bwd(steps, tile_of(variant.target), o, runtime::ThreadPool::instance());
  }
  count_flops(state, 6);
}

void register_all() {
  constexpr const char* types[] = {"", "f32", "bf16", "f16"};
  for (Target target : cpu_targets()) {
    if (!host_cpu_target() || target > *host_cpu_target()) continue;
    for (Int64 type : {kFloat32, kBfloat16, kFloat16}) {
      for (bool specialized : {true, false}) {
        const Variant variant{target, type, specialized};
        const std::string tail = std::string(types[type]) +
                                 (specialized ? "/specialized@" : "/generic@") +
                                 std::string(name(target));
        for (const auto& [pass, run] :
             {std::pair{"forward/", &forward}, {"backward/", &backward}}) {
          benchmark::RegisterBenchmark((pass + tail).c_str(), *run, variant)
              ->Unit(benchmark::kMillisecond)
              ->UseRealTime();
        }
      }
    }
  }
}

}  // namespace
}  // namespace rlk

int main(int argc, char** argv) {
  rlk::read_flag(argc, argv, "rows", rlk::rows);
  rlk::read_flag(argc, argv, "dim", rlk::dim);
  rlk::read_flag(argc, argv, "vocab", rlk::vocab);
  rlk::read_flag(argc, argv, "threads", rlk::threads);
  rlk::runtime::ThreadPool::set_num_threads(static_cast<int>(rlk::threads));
  rlk::register_all();
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
  return 0;
}
