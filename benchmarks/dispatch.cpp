// SPDX-License-Identifier: Apache-2.0
// Host time of a call on a memory hit. call_overhead.py runs this and reads its JSON.
//   stages_2_to_4: Dispatcher::run with linear_logp's own check and specialize and a launch that
//                  does nothing. Counter `allocations`: heap allocations of one call.
//   launch/V/D:    Dispatcher::run with the real kernel, one row. Counter `kernel_ns`: time inside
//                  the kernel's functions alone, measured around each of them (a reading of the
//                  clock, some 25 ns a function, is counted in).
#include "benchmark/benchmark.h"
#include "jit/dispatcher.hpp"
#include "jit/llvm_compiler.hpp"
#include "templates/linear_logp/launch_cpu.hpp"
#include "templates/linear_logp/op.hpp"
#include "tests/support/fake_toolchain.hpp"
#include "tests/support/temp_dir.hpp"

#include <chrono>
#include <cstdlib>
#include <iterator>
#include <memory>
#include <new>
#include <random>
#include <span>
#include <vector>

// Counts allocations of this thread. Not inlined: GCC takes a malloc seen through new for a
// mistake.
static thread_local std::int64_t num_allocations = 0;
[[gnu::noinline]] void* operator new(std::size_t size) {
  ++num_allocations;
  if (void* p = std::malloc(size)) return p;
  throw std::bad_alloc();
}
[[gnu::noinline]] void operator delete(void* p) noexcept { std::free(p); }
[[gnu::noinline]] void operator delete(void* p, std::size_t) noexcept { std::free(p); }

namespace rlk {
namespace {

using Clock = std::chrono::steady_clock;

// Loads as the CPU loader does, then puts a function that takes the time in front of each entry.
// One kernel a process and one thread: what it stands before lies in statics.
class TimedLoader : public runtime::Loader {
 public:
  static inline Clock::duration total{};

  void load(LoadedKernel& kernel, std::span<const std::byte> code,
            std::span<const char* const> entries) override {
    loader_->load(kernel, code, entries);
    std::copy_n(kernel.entries.begin(), k_num_steps, steps_);
    kernel.entries[0] = reinterpret_cast<void*>(&timed<0>);
    kernel.entries[1] = reinterpret_cast<void*>(&timed<1>);
    kernel.entries[2] = reinterpret_cast<void*>(&timed<2>);
  }
  Target target(int index) override { return loader_->target(index); }
  void prepare(const LoadedKernel& kernel, int device) override {
    loader_->prepare(kernel, device);
  }
  bool is_capturing(int device, void* stream) override {
    return loader_->is_capturing(device, stream);
  }

 private:
  static constexpr std::size_t k_num_steps = 3;  // those of a call without ranks
  static_assert(std::size(LinearLogpFwdSteps::entries) == k_num_steps + 1);

  template <std::size_t step>
  static void timed(const LinearLogpCpuArgs* args, Int64 begin, Int64 end, void* scratch) {
    const auto start = Clock::now();
    reinterpret_cast<LinearLogpCpuStep>(steps_[step])(args, begin, end, scratch);
    total += Clock::now() - start;
  }

  static inline void* steps_[k_num_steps] = {};
  std::unique_ptr<runtime::Loader> loader_ = runtime::make_cpu_loader();
};

// One row of linear_logp with everything that it points to.
struct OneRow {
  OneRow(std::int64_t vocab, std::int64_t dim, const jit::Op& op)
      : hidden(dim), weight(vocab * dim) {
    std::mt19937 random(1);
    std::normal_distribution<float> normal;
    for (auto* values : {&hidden, &weight}) {
      for (float& value : *values) value = 0.1f * normal(random);
    }
    call.op = &op;
    const auto dense = [](void* data, DType dtype, std::initializer_list<std::int64_t> shape) {
      return dense_tensor(data, dtype, {}, std::span(shape.begin(), shape.size()));
    };
    call.hidden = dense(hidden.data(), DType::f32, {1, dim});
    call.weight = dense(weight.data(), DType::f32, {vocab, dim});
    call.target = dense(&target, DType::i64, {1});
    call.log_prob = dense(&log_prob, DType::f32, {1});
  }
  OneRow(const OneRow&) = delete;
  OneRow& operator=(const OneRow&) = delete;

  std::vector<float> hidden, weight;
  std::int64_t target = 0;
  float log_prob = 0;
  LinearLogpCall call;
};

std::unique_ptr<jit::Dispatcher> make_dispatcher(const test::TempDir& folder,
                                                 jit::Toolchain toolchain) {
  jit::Config config;
  config.settings.cache_dir = folder / "cache";
  config.settings.package_folder = RLK_PACKAGE_FOLDER;
  return std::make_unique<jit::Dispatcher>(config, std::move(toolchain));
}

void stages_2_to_4(benchmark::State& state) {
  static const jit::Op op = [] {
    jit::Op without_launch = templates::linear_logp_op;
    without_launch.launch = [](const LoadedKernel& kernel, const jit::OpCall&,
                               const jit::LaunchSettings&) { benchmark::DoNotOptimize(&kernel); };
    return without_launch;
  }();
  const test::TempDir folder;
  const auto dispatcher = make_dispatcher(
      folder, {std::make_shared<test::FakeCompiler>(), std::make_shared<test::FakeLoader>()});
  const OneRow row(7, 5, op);
  dispatcher->run(row.call);
  const std::int64_t before = num_allocations;
  for (auto _ : state) dispatcher->run(row.call);
  state.counters["allocations"] =
      static_cast<double>(num_allocations - before) / static_cast<double>(state.iterations());
  if (dispatcher->cache_info().memory_hits != state.iterations()) state.SkipWithError("no hits");
}
BENCHMARK(stages_2_to_4);

#ifdef RLK_HAS_LLVM
void launch(benchmark::State& state) {
  const test::TempDir folder;
  const auto dispatcher = make_dispatcher(
      folder,
      {std::make_shared<jit::LlvmCompiler>(RLK_PACKAGE_FOLDER), std::make_shared<TimedLoader>()});
  const OneRow row(state.range(0), state.range(1), templates::linear_logp_op);
  dispatcher->run(row.call);
  TimedLoader::total = {};
  for (auto _ : state) dispatcher->run(row.call);
  const std::chrono::duration<double, std::nano> kernel = TimedLoader::total;
  state.counters["kernel_ns"] = kernel.count() / static_cast<double>(state.iterations());
}
BENCHMARK(launch)->Args({1, 1})->Args({256, 64});
#endif

}  // namespace
}  // namespace rlk

BENCHMARK_MAIN();
