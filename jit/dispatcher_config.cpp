// SPDX-License-Identifier: Apache-2.0
// The dispatcher's making and settings: what is decided once or by configure(), not by a call.
#include "jit/dispatcher.hpp"
#include "jit/layers.hpp"
#include "jit/llvm_compiler.hpp"
#include "jit/nvrtc/make_nvrtc_compiler.hpp"
#include "runtime/cuda/cuda_loader.hpp"
#include "runtime/error.hpp"
#include "runtime/log.hpp"
#include "runtime/thread_pool.hpp"

#include <pthread.h>

#include <algorithm>
#include <cmath>
#include <ctime>

namespace rlk::jit {
namespace {

// Null before the first use.
std::atomic<Dispatcher*> made_instance{nullptr};

cache::StoreOptions store_options(const Settings& settings) {
  Layers layers = choose_layers(settings);
  // With RLK_JIT=off nothing is stored anywhere.
  const auto level = settings.policy == Policy::off ? LogLevel::info : LogLevel::warn;
  if (!layers.note.empty()) log().log(level, "cache: {}", layers.note);
  return std::move(layers.options);
}

}  // namespace

Dispatcher::Dispatcher(Config config, Toolchain cpu, Toolchain cuda)
    : cpu_(std::move(cpu)), cuda_(std::move(cuda)) {
  configure(std::move(config));
}

void Dispatcher::stop_instance() {
  Dispatcher* dispatcher = made_instance.load();
  if (dispatcher == nullptr) return;
  dispatcher->is_ending_ = true;  // nor does anybody wait for another process any longer
  dispatcher->cancels_ = true;
  dispatcher->ahead_.stop();
  dispatcher->background_.stop();
  dispatcher->cancels_ = false;  // who calls even now may compile
}

Dispatcher& Dispatcher::instance() {
  // Leaked on purpose: other threads may still call while statics are destroyed.
  static Dispatcher* dispatcher = [] {
    Config config{read_settings()};
    Toolchain cpu{std::make_shared<LlvmCompiler>(config.settings.package_folder),
                  runtime::make_cpu_loader()};
    const auto is_cancelled = [] {
      const Dispatcher* own = made_instance.load();
      return own != nullptr && own->cancels_;
    };
    Toolchain cuda{make_nvrtc_compiler(config.settings, std::nullopt, is_cancelled),
                   runtime::cuda::make_cuda_loader()};
    auto* made = new Dispatcher(std::move(config), std::move(cpu), std::move(cuda));
    pthread_atfork([] { instance().lock_for_fork(); }, [] { instance().unlock_in_parent(); },
                   [] { instance().reset_in_child(); });
    made_instance = made;
    return made;
  }();
  return *dispatcher;
}

// In the order that a build and configure() take them.
void Dispatcher::lock_for_fork() {
  background_.pause();
  ahead_.pause();
  building_.lock();
  mutex_.lock();
  table_.lock_for_fork();
  background_.lock_for_fork();
  ahead_.lock_for_fork();
}

void Dispatcher::unlock_in_parent() {
  ahead_.unlock_in_parent();
  background_.unlock_in_parent();
  table_.unlock_in_parent();
  mutex_.unlock();
  building_.unlock();
}

void Dispatcher::reset_in_child() {
  ahead_.reset_in_child();
  background_.reset_in_child();
  table_.reset_in_child();
  // What the parent's threads were to build nobody builds here: it is asked for again.
  std::erase_if(background_kernels_, [](const auto& entry) { return !entry.second->is_done; });
  table_.forget_fallbacks();
  mutex_.unlock();
  new (&building_) std::shared_mutex;  // the old one counts waiting threads that are not here
}

Dispatcher::Session Dispatcher::session() const {
  std::lock_guard lock(mutex_);
  return session_;
}

Config Dispatcher::config() const { return session().config; }

std::int64_t Dispatcher::saved_mib() const { return saved_mib_.load(std::memory_order_relaxed); }

bool Dispatcher::validates_sync() const { return validate_sync_.load(std::memory_order_relaxed); }

std::shared_ptr<cache::DiskStore> Dispatcher::store() const { return session().store; }

void Dispatcher::record(cache::UsageEvent event, const Specialization& spec, double ms) const {
  session().usage->record({.event = event,
                           .kernel = spec.text(),
                           .ms = static_cast<std::uint64_t>(std::llround(std::max(ms, 0.0))),
                           .time_s = std::time(nullptr)});
}

void Dispatcher::configure(Config config) {
  set_log_level(config.settings.log_level);
  if (config.settings.num_threads) {
    runtime::ThreadPool::instance().set_num_threads(*config.settings.num_threads);
  }
  const auto forced = [](const std::optional<Target>& target) {
    return target ? static_cast<int>(*target) : k_own_target;
  };
  cpu_target_ = forced(config.settings.arch.cpu);
  cuda_target_ = forced(config.settings.arch.cuda);
  specialize_ = config.settings.specialize;
  validate_sync_ = config.settings.validate_sync;
  workspace_bytes_ = std::int64_t{config.settings.workspace_mib} << 20;
  max_sms_ = config.settings.max_sms;
  saved_mib_ = config.settings.saved_mib;

  std::lock_guard lock(mutex_);
  if (!session_.store || config.settings.cache_dir != session_.config.settings.cache_dir) {
    cache::StoreOptions options = store_options(config.settings);
    session_.usage = std::make_shared<cache::UsageLog>(options);
    session_.tunings = std::make_shared<const std::vector<TuningRecord>>(read_tunings(options));
    tunings_.clear();
    session_.store = std::make_shared<cache::DiskStore>(std::move(options));
  }
  if (config.settings.tile != session_.config.settings.tile) tunings_.clear();
  if (!session_.trace) session_.trace = std::make_shared<Trace>(config.settings.trace_file);
  session_.config = std::move(config);
  warned_.clear();
  table_.forget_fallbacks();
}

}  // namespace rlk::jit
