// SPDX-License-Identifier: Apache-2.0
// Looks for each kernel in the layers, then compiles the rest in worker processes.
#include "jit/warm/warm.hpp"

#include "jit/build_key.hpp"
#include "jit/llvm_compiler.hpp"
#include "jit/metadata.hpp"
#include "jit/nvrtc/make_nvrtc_compiler.hpp"
#include "jit/warm/fork_pool.hpp"
#include "runtime/cgroup.hpp"
#include "runtime/cpu_count.hpp"
#include "runtime/error.hpp"

#include <algorithm>
#include <memory>
#include <unordered_set>

namespace rlk::jit {
namespace {

class Warmer {
 public:
  Warmer(const std::vector<Specialization>& kernels, const WarmOptions& options)
      : kernels_(kernels), options_(options), store_(options.store) {
    cpu_ = std::make_unique<LlvmCompiler>(options.settings.package_folder);
    cuda_ = make_nvrtc_compiler(options.settings, options.cuda_major,
                                [this] { return pool_.is_stopped(); });
  }

  std::vector<WarmResult> run(runtime::FunctionRef<void(const WarmResult&)> tell,
                              runtime::FunctionRef<bool()> should_stop) {
    std::vector<WarmResult> results;
    for (const Specialization& kernel : kernels_) results.push_back({.kernel = kernel});
    std::vector<std::size_t> missing;
    for (std::size_t i = 0; i < kernels_.size(); ++i) {
      if (!is_present(kernels_[i])) {
        missing.push_back(i);
        continue;
      }
      results[i].outcome = WarmOutcome::present;
      tell(results[i]);
    }
    expect_compilers(missing);
    if (!missing.empty()) {
      if (!options_.store.read_write)
        throw Error("cache: there is no folder that could be written");
      pool_.run(
          missing.size(), num_processes(),
          [&](std::size_t job) { return compile(kernels_[missing[job]]); },
          [&](std::size_t job, const std::optional<std::string>& text) {
            WarmResult& result = results[missing[job]];
            read_result(text, result);
            tell(result);
          },
          should_stop);
    }
    return results;
  }

 private:
  Compiler& compiler(const Specialization& kernel) {
    if (backend(kernel.target) == Backend::cpu) return *cpu_;
    return *cuda_;
  }

  bool is_present(const Specialization& kernel) {
    Compiler& compiler = this->compiler(kernel);
    const std::string identity = compiler.available() ? compiler.identity() : "";
    return store_.get(build_key(kernel), identity).has_value();
  }

  // Of the kernels that are missing; where a CUDA major is asked for, of all: another compiler's
  // code would not do.
  void expect_compilers(const std::vector<std::size_t>& missing) {
    const auto expect = [&](const Specialization& kernel) {
      const auto why = compiler(kernel).why_not();
      if (!why.empty()) throw Unsupported("{}: cannot be compiled: {}", kernel.text(), why);
    };
    for (const std::size_t i : missing) expect(kernels_[i]);
    for (const Specialization& kernel : kernels_) {
      if (options_.cuda_major && backend(kernel.target) == Backend::cuda) expect(kernel);
    }
  }

  int num_processes() const {
    if (options_.num_processes > 0) return options_.num_processes;
    // A compiler's process takes 200 to 300 MiB.
    constexpr std::uint64_t k_process_bytes = std::uint64_t{512} << 20;
    const auto by_memory = runtime::available_memory_bytes() / k_process_bytes;
    return static_cast<int>(std::clamp<std::uint64_t>(
        by_memory, 1, static_cast<std::uint64_t>(runtime::default_num_threads())));
  }

  // In a worker: what came of it, as read_result() takes it.
  std::string compile(const Specialization& kernel) {
    try {
      Compiler& compiler = this->compiler(kernel);
      const std::string identity = compiler.identity();
      const cache::Key key = build_key(kernel);
      const cache::Turn turn = store_.take_turn(key, identity, [this](auto time) {
        return cache::sleep_for(time) && !pool_.is_stopped();
      });
      if (turn.entry) return "present";
      if (turn.outcome == cache::TurnOutcome::cancelled) return "cancelled";
      if (!turn.may_put()) return "failed another process has been compiling it for minutes";
      const CompileRequest request = compile_request(kernel);
      CompiledCode compiled = compiler.compile(request);
      const double compile_ms = compiled.stats.compile_ms;
      std::string told = metadata(kernel, request, compiled.stats, identity);
      if (options_.is_reproducible) told = without_times(told);
      store_.put({key.bytes, std::move(told), std::move(compiled.code)}, identity);
      if (!store_.get(key, identity)) return "failed it was compiled and could not be stored";
      return fmt::format("compiled {}", compile_ms);
    } catch (const std::exception& error) {
      return pool_.is_stopped() ? "cancelled" : fmt::format("failed {}", error.what());
    }
  }

  static void read_result(const std::optional<std::string>& text, WarmResult& result) {
    if (!text) {
      result.outcome = WarmOutcome::failed;
      result.problem = "the compiler's process died; was it out of memory?";
      return;
    }
    const std::size_t blank = std::min(text->find(' '), text->size());
    const std::string rest = text->substr(std::min(blank + 1, text->size()));
    for (const auto outcome : {WarmOutcome::compiled, WarmOutcome::present, WarmOutcome::failed,
                               WarmOutcome::cancelled}) {
      if (text->substr(0, blank) == name(outcome)) result.outcome = outcome;
    }
    if (result.outcome == WarmOutcome::compiled)
      result.compile_ms = std::strtod(rest.c_str(), nullptr);
    if (result.outcome == WarmOutcome::failed) result.problem = rest;
  }

  const std::vector<Specialization>& kernels_;
  const WarmOptions& options_;
  cache::DiskStore store_;
  ForkPool pool_;
  std::unique_ptr<Compiler> cpu_;
  std::shared_ptr<Compiler> cuda_;
};

}  // namespace

std::string_view name(WarmOutcome outcome) {
  constexpr std::string_view names[] = {"compiled", "present", "failed", "cancelled"};
  return names[static_cast<int>(outcome)];
}

std::vector<Specialization> kernels_of(const WarmPlan& plan) {
  std::vector<Specialization> kernels;
  std::unordered_set<Specialization, SpecializationHash> seen;
  const auto add = [&](const Op& op, const ModelShape& shape, DType dtype, Pass pass,
                       Target target) {
    for (const Tuning& tuning : tunings_for(plan.tunings, op, pass, target)) {
      for (const auto& kernel : op.model_variants(shape, dtype, pass, target, tuning)) {
        if (seen.insert(kernel).second) kernels.push_back(kernel);
      }
    }
  };
  for (ModelShape shape : plan.shapes) {
    shape.keep = plan.keep;
    for (const Op* op : plan.ops) {
      for (const Target target : plan.targets) {
        for (const DType dtype : plan.dtypes) {
          for (const Pass pass : plan.passes) add(*op, shape, dtype, pass, target);
        }
      }
    }
  }
  return kernels;
}

std::vector<WarmResult> warm(const std::vector<Specialization>& kernels, const WarmOptions& options,
                             runtime::FunctionRef<void(const WarmResult&)> tell,
                             runtime::FunctionRef<bool()> should_stop) {
  return Warmer(kernels, options).run(tell, should_stop);
}

}  // namespace rlk::jit
