// SPDX-License-Identifier: Apache-2.0
// Dispatcher::run shows a call's ten stages in order; the rest of the file is what they call.
#include "jit/dispatcher.hpp"

#include "jit/build_key.hpp"
#include "jit/metadata.hpp"
#include "runtime/error.hpp"
#include "runtime/log.hpp"

#include <algorithm>
#include <thread>

namespace rlk::jit {
namespace {
bool is_cuda(const Device& device) { return device.kind == Device::Kind::cuda; }
}  // namespace

// Stage 1, bind, is python/bind's: it made the call.
void Dispatcher::run(const OpCall& call) {
  const Op& op = *call.op;
  op.check(call);                                 // 2 check
  const Specialization spec = specialize(call);   // 3 specialize
  const Variant* variant = table_.look_up(spec);  // 4 look up
  if (variant != nullptr) {
    memory_hits_.fetch_add(1, std::memory_order_relaxed);
    if (call.is_differentiated) begin_gradients(call, *variant);
  } else {
    variant = &table_.look_up_or_build(spec, [&]() -> Variant {
      const std::shared_lock building(building_);
      expect_no_capture(call, spec);
      const Missing missing = this->missing(spec, call.device.index);  // 5 key
      missing.session.trace->record(spec);
      if (call.is_differentiated) compile_gradients(call);
      Loading found(*this, missing);
      const Decision decision = decide(spec, missing.compiler, found);  // 6 get, 9 load
      if (decision.origin != Origin::compile) return use(missing, decision, found);
      try {
        if (KernelPtr ahead = wait_for_background(spec)) return {.kernel = std::move(ahead)};
        return {.kernel = make(missing)};  // 7 compile, 8 put, 9 load
      } catch (const DriverError&) {
        throw;  // of the device, not of the code: the generic kernel would meet it too
      } catch (const std::exception& error) {
        if (spec.is_generic()) throw;
        found.keep_refusal(error);
        const Decision fallback = decide_fallback(spec, error.what(), found);
        return use(missing, fallback, found);
      }
    });
  }
  if (variant->is_fallback()) variant = &take_over(call, spec, *variant);
  op.launch(*variant->kernel, call, launch_settings());  // 10 launch
}

KernelPtr Dispatcher::make(const Missing& missing) {
  cache::DiskStore& store = *missing.session.store;
  const std::string& compiler = missing.compiler.identity;
  // A fork waits for builds, but need not wait for another process's.
  const auto pause = [this](std::chrono::milliseconds time) {
    building_.unlock_shared();
    std::this_thread::sleep_for(time);
    building_.lock_shared();
    return !is_ending_;
  };
  const cache::Turn turn = store.take_turn(missing.key, compiler, pause);
  if (turn.outcome == cache::TurnOutcome::cancelled) throw Error("the process ends");
  if (turn.entry) {  // another process was compiling it
    if (auto kernel = load_cached(missing.spec, *turn.entry, missing.device)) return kernel;
  }
  const cache::Entry entry = compile(missing.spec, missing.key);  // 7 compile
  const auto put = [&] {
    if (turn.may_put()) store.put(entry, compiler);  // 8 put
  };
  try {
    KernelPtr kernel = load(missing.spec, entry, missing.device);  // 9 load
    put();  // what does not load would be found, refused and compiled again by every process
    return kernel;
  } catch (const DriverError&) {
    put();  // of the device, not of the code
    throw;
  }
}

Specialization Dispatcher::specialize(const OpCall& call) {
  if (call.device.kind == Device::Kind::other || (!cuda_.loader && is_cuda(call.device))) {
    throw Unsupported(
        "{}: device: expected cpu, or cuda of compute capability 8.0 or later, got {}",
        call.op->name, text(call.device));
  }
  const auto target = this->target(call.device);
  const auto spec = call.op->specialize(call, target, tuning(*call.op, call.pass, call.device));
  return specialize_.load(std::memory_order_relaxed) ? spec : spec.generic();
}

Target Dispatcher::target(const Device& device) const {
  const int forced = (is_cuda(device) ? cuda_target_ : cpu_target_).load(std::memory_order_relaxed);
  if (forced != k_own_target) return static_cast<Target>(forced);
  return (is_cuda(device) ? cuda_ : cpu_).loader->target(device.index);
}

Tuning Dispatcher::tuning(const Op& op, Pass pass, const Device& device) {
  if (op.tile_names.empty() || !is_cuda(device)) return {};
  if (const Tuning* found = tunings_.find(op, pass, device.index)) return *found;
  const runtime::DeviceModel model = cuda_.loader->model(device.index);
  const std::lock_guard lock(mutex_);
  const std::string& forced = session_.config.settings.tile;
  Tuning tuning = forced_tuning(op, forced);
  if (forced == k_tuned) {
    const auto found = std::ranges::find_if(*session_.tunings, [&](const TuningRecord& record) {
      return is_of(record, op, pass) && record.device == model;
    });
    if (found != session_.tunings->end()) tuning = tuning_of(*found, op);
  }
  return tunings_.add(op, pass, device.index, tuning);
}

LaunchSettings Dispatcher::launch_settings() const {
  return {workspace_bytes_.load(std::memory_order_relaxed),
          max_sms_.load(std::memory_order_relaxed), validate_sync_.load(std::memory_order_relaxed)};
}

void Dispatcher::expect_no_capture(const OpCall& call, const Specialization& spec) const {
  if (!tools(spec).loader->is_capturing(call.device.index, call.stream)) return;
  throw Unsupported(
      "{}: stream: expected a kernel that is loaded, got the first call of {} inside a CUDA graph "
      "capture; call once before capture, or rlk.jit.preload()",
      call.op->name, spec.text());
}

Dispatcher::Missing Dispatcher::missing(const Specialization& spec, int device) const {
  Session session = this->session();
  const Policy policy = session.config.settings.policy;
  return {std::move(session), spec, build_key(spec), device,
          compiler_at_hand(policy, *tools(spec).compiler)};
}

cache::Entry Dispatcher::compile(const Specialization& spec, const cache::Key& key) {
  CompileRequest request = compile_request(spec);
  Compiler& compiler = *tools(spec).compiler;
  CompiledCode compiled;
  try {
    compiled = compiler.compile(request);
  } catch (const Error&) {
    if (!cancels_.load()) record(cache::UsageEvent::failed, spec);
    throw;
  }
  record(cache::UsageEvent::compiled, spec, compiled.stats.compile_ms);
  compiles_.fetch_add(1, std::memory_order_relaxed);
  log().info("compiled {} in {:.0f} ms", request.name, compiled.stats.compile_ms);
  return {key.bytes, metadata(spec, request, compiled.stats, compiler.identity()),
          std::move(compiled.code)};
}

KernelPtr Dispatcher::load(const Specialization& spec, const cache::Entry& entry, int device) {
  auto kernel = std::make_shared<LoadedKernel>();
  kernel->name = spec.text();
  kernel->target = spec.target;
  kernel->constants = spec.values;
  runtime::Loader& loader = *tools(spec).loader;
  loader.load(*kernel, entry.payload, spec.op->entries(spec.pass, backend(spec.target)));
  loader.prepare(*kernel, device);
  return kernel;
}

CacheInfo Dispatcher::cache_info() const {
  return {memory_hits_,
          disk_hits_,
          compiles_,
          fallbacks_,
          static_cast<std::int64_t>(table_.num_loaded()),
          alternatives_};
}

}  // namespace rlk::jit
