// SPDX-License-Identifier: Apache-2.0
// One call, ten stages: check, specialize, look up, key, get, compile, put, load, launch.
#pragma once

#include "cache/disk_store.hpp"
#include "cache/key.hpp"
#include "cache/usage_log.hpp"
#include "jit/background.hpp"
#include "jit/compiler.hpp"
#include "jit/decision.hpp"
#include "jit/kernel_table.hpp"
#include "jit/op.hpp"
#include "jit/tuning_file.hpp"
#include "jit/tuning_table.hpp"
#include "jit/warm/trace.hpp"
#include "runtime/loader.hpp"
#include "runtime/refused.hpp"
#include "runtime/settings.hpp"

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <shared_mutex>
#include <string>
#include <unordered_map>
#include <vector>

namespace rlk::jit {

struct CacheInfo {
  std::int64_t memory_hits = 0;   // calls whose kernel was loaded
  std::int64_t disk_hits = 0;     // kernels loaded from a cache layer
  std::int64_t compiles = 0;      // kernels compiled by this process
  std::int64_t fallbacks = 0;     // calls that ran the generic kernel in place of a specialized one
  std::int64_t loaded = 0;        // specialized kernels that are loaded
  std::int64_t alternatives = 0;  // calls that ran a kernel of another tile in place of their own
};

// What a call would run, found without compiling, storing or loading anything.
struct Explanation {
  std::string kernel;  // text of the variant that would run, or of the last one that was looked for
  std::string key;     // its cache digest
  std::string variant;  // "specialized" or "generic"
  std::string source;   // "loaded", "cache", "compile" or "none"
  std::string reason;   // in words
};

// By name.
struct Preloaded {
  std::vector<std::string> loaded;   // now, or before
  std::vector<std::string> missing;  // in no layer
};

// What may change while a process runs.
struct Config {
  Settings settings;
};

// What differs between backends: who compiles and who loads.
struct Toolchain {
  std::shared_ptr<Compiler> compiler;
  std::shared_ptr<runtime::Loader> loader;
};

class Dispatcher {
 public:
  // Without `cuda`, CUDA tensors are Unsupported.
  Dispatcher(Config config, Toolchain cpu, Toolchain cuda = {});

  // The dispatcher of this process, made from the environment at first use.
  static Dispatcher& instance();

  void run(const OpCall& call);
  Explanation explain(const OpCall& call);
  CacheInfo cache_info() const;

  Config config() const;
  // Its setting, read without a lock.
  std::int64_t saved_mib() const;
  bool validates_sync() const;  // whether values are looked at in the call itself
  void configure(Config config);

  // Loads kernels ahead of their first call; compiles nothing. Those of other targets than the
  // device's are missing.
  Preloaded preload(const std::vector<Specialization>& kernels, const Device& device);

  // What calls on the device run. Throws Unsupported.
  Target target(const Device& device) const;
  // Which tiles they take.
  Tuning tuning(const Op& op, Pass pass, const Device& device);

  // Whether no kernel is being built in the background, after waiting for that at most so long.
  bool wait_for(std::chrono::milliseconds time) {
    return jit::wait_for({&background_, &ahead_}, time);
  }
  // Ends the background work of instance(), if there is one, for good; for the process's end.
  static void stop_instance();

  std::shared_ptr<cache::DiskStore> store() const;

 private:
  // What stages 5 to 9 need, taken once so that a configure() in between does not mix.
  struct Session {
    Config config;
    std::shared_ptr<cache::DiskStore> store;
    std::shared_ptr<cache::UsageLog> usage;
    std::shared_ptr<Trace> trace;
    std::shared_ptr<const std::vector<TuningRecord>> tunings;
  };

  // A kernel that is not loaded, and what it takes to find or make it.
  struct Missing {
    Session session;
    Specialization spec;
    cache::Key key;
    int device = 0;
    CompilerAtHand compiler;
  };
  // Loads what a decision asks for; that of the last yes is what it settles on. Where the system
  // refuses what a load needs, the answer is no, and why is kept.
  class Loading final : public Places {
   public:
    Loading(Dispatcher& dispatcher, const Missing& missing)
        : dispatcher_(dispatcher), missing_(missing) {}
    bool is_loaded(const Specialization& spec) override;
    bool is_cached(const Specialization& spec) override;
    KernelPtr kernel() const { return kernel_; }
    // "" if nothing was.
    const std::string& refusal() const { return refusal_; }
    void keep_refusal(const std::exception& error) {
      if (is_refusal(error)) refusal_ = error.what();
    }

   private:
    Dispatcher& dispatcher_;
    const Missing& missing_;
    KernelPtr kernel_;
    std::string refusal_;
  };

  void lock_for_fork();
  void unlock_in_parent();
  void reset_in_child();
  Session session() const;
  const Toolchain& tools(const Specialization& spec) const {
    return backend(spec.target) == Backend::cpu ? cpu_ : cuda_;
  }
  Specialization specialize(const OpCall& call);
  LaunchSettings launch_settings() const;
  void expect_no_capture(const OpCall& call, const Specialization& spec) const;
  Missing missing(const Specialization& spec, int device) const;
  KernelPtr get_and_load(const Missing& missing, const Specialization& spec, const cache::Key& key);
  cache::Entry compile(const Specialization& spec, const cache::Key& key);
  KernelPtr load(const Specialization& spec, const cache::Entry& entry, int device);
  KernelPtr load_cached(const Specialization& spec, const cache::Entry& entry, int device);
  KernelPtr make(const Missing& missing);
  bool preload_one(const Specialization& spec, int device);
  Variant use(const Missing& missing, const Decision& decision, const Loading& found);
  // False where no thread is to be had: then `meanwhile` says so.
  bool make_in_background(const Missing& missing, Variant& meanwhile);
  void run_in_background(const Missing& missing, const std::string& note,
                         BackgroundKernel& background);
  void begin_gradients(const OpCall& call, const Variant& variant);
  void compile_gradients(const OpCall& call);
  void compile_ahead(const Specialization& spec, int device);
  KernelPtr wait_for_background(const Specialization& spec);
  std::shared_ptr<BackgroundKernel> background(const Specialization& spec) const;
  void forget_background(const Specialization& spec);
  KernelPtr loaded(const Specialization& spec) const;
  void count_fallback(const Variant& variant);
  const Variant& take_over(const OpCall& call, const Specialization& spec, const Variant& fallback);
  void warn_once(const std::string& message, const std::string& reason);
  // For `rlk-jit stats`; of a first call alone.
  void record(cache::UsageEvent event, const Specialization& spec, double ms = 0) const;

  Toolchain cpu_, cuda_;
  KernelTable table_;
  TuningTable tunings_;

  // Read on every call. Targets: what RLK_ARCH says, or none: the device's own.
  static constexpr int k_own_target = -1;
  std::atomic<int> cpu_target_{k_own_target}, cuda_target_{k_own_target};
  std::atomic<bool> specialize_{true}, validate_sync_{false};
  std::atomic<std::int64_t> workspace_bytes_{0};
  std::atomic<int> max_sms_{0};
  std::atomic<int> saved_mib_{0};

  // Shared while stages 5 to 9 run. A fork waits for them: its child would find LLVM, the dynamic
  // linker or the log in the middle of what another thread did, locked for ever.
  std::shared_mutex building_;
  mutable std::mutex mutex_;  // guards what follows; never held while a stage runs
  Session session_;
  std::set<std::string> warned_;
  // By specialization: what is, or was, built in the background.
  std::unordered_map<Specialization, std::shared_ptr<BackgroundKernel>, SpecializationHash>
      background_kernels_;

  std::atomic<bool> is_ending_{false};
  std::atomic<bool> cancels_{false};  // NVRTC's compiles
  Background background_{2, Background::Priority::low};
  // Whose callers wait for them: one thread, so that a forward's own compile keeps its core.
  Background ahead_{1, Background::Priority::normal};

  mutable std::atomic<std::int64_t> memory_hits_{0}, disk_hits_{0}, compiles_{0}, fallbacks_{0},
      alternatives_{0};
};

}  // namespace rlk::jit
