// SPDX-License-Identifier: Apache-2.0
// A compiler and a loader that touch nothing, and an op to run through them.
#pragma once

#include "jit/dispatcher.hpp"
#include "runtime/refused.hpp"
#include "templates/registry.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

// For what needs a key of a CPU kernel: a build without LLVM has no templates for them.
#define RLK_NEEDS_CPU_TEMPLATES()                                                    \
  if (rlk::templates::find_source("linear_logp", rlk::Target::x86_64_v2) == nullptr) \
  GTEST_SKIP() << "this build has no CPU templates"

namespace rlk::test {

// "Compiles" to the request's name, or as `emit` says. Counts; can be made to fail or to take its
// time.
class FakeCompiler : public jit::Compiler {
 public:
  std::atomic<int> num_compiles{0};
  std::atomic<int> num_at_once{0}, most_at_once{0};
  std::atomic<int> delay_ms{0};
  std::atomic<bool> fails{false};
  std::atomic<int> num_refusals{0};  // the system refuses the next ones a thread
  std::string missing;               // not empty: there is no compiler
  std::string id = "fake-1";
  std::function<std::string(const jit::CompileRequest&)> emit =
      [](const jit::CompileRequest& request) { return request.name; };

  std::string identity() const override { return id; }
  bool available() const noexcept override { return missing.empty(); }
  std::string why_not() const override { return missing; }
  jit::CompiledCode compile(const jit::CompileRequest& request) override {
    ++num_compiles;
    int now = ++num_at_once;
    for (int most = most_at_once; now > most && !most_at_once.compare_exchange_weak(most, now);) {
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(delay_ms));
    --num_at_once;
    if (fails) throw CompileError("{}: refused by the fake", request.name);
    if (num_refusals > 0) {
      --num_refusals;
      throw Refused("threads: refused by the fake");
    }
    const std::string code = emit(request);
    jit::CompiledCode result;
    result.code.resize(code.size());
    std::memcpy(result.code.data(), code.data(), code.size());
    return result;
  }
};

// Takes what FakeCompiler made; anything else does not load.
class FakeLoader : public runtime::Loader {
 public:
  std::atomic<int> num_loads{0}, num_loaded{0};  // ever; at this moment
  std::atomic<int> num_models{0};                // asked for
  std::atomic<bool> captures{false};
  // The device, or its driver, fails at a step.
  std::atomic<bool> load_fails{false}, prepare_fails{false};
  std::atomic<bool> is_refused{false};  // no page may become executable
  std::string refused;                  // kernels of such a name do not load
  std::string accepts;                  // code that loads besides FakeCompiler's; empty: none
  std::vector<runtime::DeviceModel> models{9, {"Fake H100", "12.8"}};          // one a device
  std::vector<Target> targets{host_cpu_target().value_or(Target::x86_64_v2)};  // one a device
  std::mutex prepared_mutex;
  std::vector<std::pair<std::string, int>> prepared;  // kernels and devices
  void* asked_stream = nullptr;

  Target target(int device) override { return targets.at(static_cast<std::size_t>(device)); }
  runtime::DeviceModel model(int device) override {
    ++num_models;
    return models.at(static_cast<std::size_t>(device));
  }
  void prepare(const LoadedKernel& kernel, int device) override {
    if (prepare_fails) throw DriverError("cuKernelGetFunction: out of memory");
    if (backend(kernel.target) != Backend::cuda) return;
    const std::lock_guard lock(prepared_mutex);
    prepared.emplace_back(kernel.name, device);
  }
  bool is_capturing(int, void* stream) override {
    if (captures) asked_stream = stream;
    return captures;
  }
  void load(LoadedKernel& kernel, std::span<const std::byte> code,
            std::span<const char* const>) override {
    ++num_loads;
    if (load_fails) throw DriverError("cuLibraryLoadData: out of memory");
    if (is_refused) throw Refused("pages: refused by the fake");
    if (!refused.empty() && kernel.name.find(refused) != std::string::npos) {
      throw LoadError("{}: no code for this device", kernel.name);
    }
    const std::string text(reinterpret_cast<const char*>(code.data()), code.size());
    if (text != kernel.name && (accepts.empty() || text != accepts))
      throw LoadError("not made for {}", kernel.name);
    ++num_loaded;
    kernel.image = std::shared_ptr<const void>(this, [this](const void*) { --num_loaded; });
  }
};

// Of linear_logp's name, so that the build's templates give it a source.
struct FakeCall : jit::OpCall {
  std::int64_t size = 1, rows = 1000;
  mutable std::string launched;
  mutable int num_launches = 0;
  mutable jit::LaunchSettings settings;
};

inline const jit::Op& fake_op() {
  static constexpr jit::ConstantDef constants[] = {{"size", "kSize"}};
  static constexpr const char* entries[] = {"rlk_fake"};
  static const jit::Op op{
      "linear_logp",
      constants,
      [](const jit::OpCall& call) {
        if (static_cast<const FakeCall&>(call).size < 0) {
          throw InvalidArgument("linear_logp: size: expected at least 0, got -1");
        }
      },
      [](const jit::OpCall& call, Target target, const jit::Tuning&) {
        return jit::Specialization{
            call.op, call.pass, target, {static_cast<const FakeCall&>(call).size}};
      },
      [](const LoadedKernel& kernel, const jit::OpCall& base, const jit::LaunchSettings& settings) {
        const auto& call = static_cast<const FakeCall&>(base);
        call.settings = settings;
        if (++call.num_launches == 1 || call.launched != kernel.name) call.launched = kernel.name;
      },
      [](jit::Pass, Backend) { return std::span<const char* const>(entries); },
      [](const jit::Specialization&) { return 0; },
      [](Target) { return std::vector<jit::Specialization>{}; },
      [](const jit::ModelShape& shape, DType, jit::Pass pass, Target target, const jit::Tuning&) {
        return std::vector<jit::Specialization>{{&fake_op(), pass, target, {shape.vocab}}};
      },
      templates::find_source};
  return op;
}

// The same, whose forwards have a backward of the same size.
inline const jit::Op& fake_op_with_gradients() {
  static const jit::Op op = [] {
    jit::Op made = fake_op();
    made.gradients = [](const jit::OpCall& call, Target target, const jit::Tuning&) {
      const std::int64_t size = static_cast<const FakeCall&>(call).size;
      return std::vector<jit::Specialization>{{call.op, jit::Pass::bwd, target, {size}}};
    };
    return made;
  }();
  return op;
}

// The same with three tiles, "a" being its own choice for every call.
inline const jit::Op& fake_tiled_op() {
  static constexpr std::string_view names[] = {"a", "b", "c"}, words[] = {"", "b", "c"};
  static constexpr jit::ConstantDef constants[] = {{"size", "kSize"}, {"tile", "kTile", words}};
  static const jit::Op op = [] {
    jit::Op tiled = fake_op();
    tiled.constants = constants;
    tiled.specialize = [](const jit::OpCall& base, Target target, const jit::Tuning& tuning) {
      const auto& call = static_cast<const FakeCall&>(base);
      const std::int64_t chosen = tuning.tiles[jit::row_class(call.rows)];
      return jit::Specialization{
          call.op, call.pass, target, {call.size, std::max<std::int64_t>(chosen, 0)}};
    };
    tiled.alternatives = [](const jit::Specialization& spec) {
      std::vector<jit::Specialization> others;
      for (std::int64_t tile = 0; tile < 3; ++tile) {
        if (tile == spec.values[1]) continue;
        others.push_back(spec);
        others.back().values[1] = tile;
      }
      return others;
    };
    tiled.tile_names = names;
    return tiled;
  }();
  return op;
}

inline FakeCall fake_call(std::int64_t size) {
  FakeCall call;
  call.op = &fake_op();
  call.size = size;
  return call;
}

inline FakeCall fake_cuda_call(std::int64_t size, int device = 0) {
  FakeCall call = fake_call(size);
  call.device = {Device::Kind::cuda, device};
  return call;
}

inline FakeCall fake_tiled_call(std::int64_t size, std::int64_t rows = 1000, int device = 0) {
  FakeCall call = fake_cuda_call(size, device);
  call.op = &fake_tiled_op();
  call.rows = rows;
  return call;
}

}  // namespace rlk::test
