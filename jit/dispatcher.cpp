// SPDX-License-Identifier: Apache-2.0
// Dispatcher::run shows a call's ten stages in order; the rest of the file is what they call.
#include "jit/dispatcher.hpp"

#include "jit/build_key.hpp"
#include "jit/metadata.hpp"
#include "runtime/error.hpp"
#include "runtime/log.hpp"

namespace rlk::jit {

// Stage 1, bind, is python/bind's: it made the call.
void Dispatcher::run(const OpCall& call) {
  const Op& op = *call.op;
  op.check(call);                                 // 2 check
  const Specialization spec = specialize(call);   // 3 specialize
  const Variant* variant = table_.look_up(spec);  // 4 look up
  if (variant != nullptr) {
    memory_hits_.fetch_add(1, std::memory_order_relaxed);
  } else {
    variant = &table_.look_up_or_build(spec, [&]() -> Variant {
      std::shared_lock building(building_);
      const Session session = this->session();
      const cache::Key key = build_key(spec);  // 5 key
      if (auto entry = get(session, key)) {    // 6 get
        if (auto kernel = load_cached(spec, *entry)) return {kernel, false, {}};
      }
      if (auto why = why_not_compile(session); !why.empty()) return fall_back(spec, why);
      try {
        const cache::Entry entry = compile(spec, key);         // 7 compile
        session.store->put(entry, cpu_.compiler->identity());  // 8 put
        return {load(spec, entry), false, {}};                 // 9 load
      } catch (const Error& error) {
        if (spec.is_generic()) throw;
        return fall_back(spec, error.what());
      }
    });
  }
  if (variant->is_fallback) fallbacks_.fetch_add(1, std::memory_order_relaxed);
  op.launch(*variant->kernel, call);  // 10 launch
}

Specialization Dispatcher::specialize(const OpCall& call) const {
  if (call.device.kind != Device::Kind::cpu) {
    throw Unsupported("{}: device: expected cpu, got {}", call.op->name, text(call.device));
  }
  if (!has_cpu_target_.load(std::memory_order_relaxed)) {
    throw Unsupported("{}: target: expected an x86-64 processor of level v2 or higher",
                      call.op->name);
  }
  const auto spec = call.op->specialize(call, cpu_target_.load(std::memory_order_relaxed));
  return specialize_.load(std::memory_order_relaxed) ? spec : spec.generic();
}

std::optional<cache::Entry> Dispatcher::get(const Session& session, const cache::Key& key) const {
  // With no compiler at hand any entry of the key is a hit: the exact name cannot be asked for.
  const bool can_compile = why_not_compile(session).empty();
  return session.store->get(key, can_compile ? cpu_.compiler->identity() : "");
}

std::string Dispatcher::why_not_compile(const Session& session) const {
  if (session.config.settings.policy == Policy::off) return "RLK_JIT=off, nothing is compiled";
  return cpu_.compiler->why_not();
}

cache::Entry Dispatcher::compile(const Specialization& spec, const cache::Key& key) {
  CompileRequest request = compile_request(spec);
  CompiledCode compiled = cpu_.compiler->compile(request);
  compiles_.fetch_add(1, std::memory_order_relaxed);
  log().info("compiled {} in {:.0f} ms", request.name, compiled.stats.compile_ms);
  return {key.bytes, metadata(spec, request, compiled.stats, cpu_.compiler->identity()),
          std::move(compiled.code)};
}

const LoadedKernel* Dispatcher::load(const Specialization& spec, const cache::Entry& entry) {
  auto kernel = std::make_unique<LoadedKernel>();
  kernel->name = spec.text();
  kernel->target = spec.target;
  cpu_.loader->load(*kernel, entry.payload, spec.op->entries(spec.pass));
  return table_.keep(std::move(kernel));
}

const LoadedKernel* Dispatcher::load_cached(const Specialization& spec, const cache::Entry& entry) {
  try {
    const LoadedKernel* kernel = load(spec, entry);
    disk_hits_.fetch_add(1, std::memory_order_relaxed);
    return kernel;
  } catch (const LoadError& error) {
    // Sound by its checksum and still not loadable: as good as a miss, and rebuilt.
    log().warn("cached entry of {} does not load ({}); it is built again", spec.text(),
               error.what());
    return nullptr;
  }
}

Variant Dispatcher::fall_back(const Specialization& spec, const std::string& reason) {
  if (spec.is_generic()) {
    throw Unsupported(
        "{}: target: no kernel for {}: the built-in layer does not hold it and nothing can be "
        "compiled ({})",
        spec.op->name, spec.text(), reason);
  }
  const Specialization generic = spec.generic();
  const Variant& variant = table_.look_up_or_build(generic, [&]() -> Variant {
    const Session session = this->session();
    const cache::Key key = build_key(generic);
    if (auto entry = get(session, key)) {
      if (auto kernel = load_cached(generic, *entry)) return {kernel, false, {}};
    }
    return fall_back(generic, reason);
  });
  warn_once(fmt::format("{}: the generic kernel runs instead: {}", spec.text(), reason), reason);
  return {variant.kernel, true, reason};
}

void Dispatcher::warn_once(const std::string& message, const std::string& reason) {
  std::lock_guard lock(mutex_);
  // One warning a reason: with RLK_JIT=off a service would else warn for each new shape.
  if (warned_.insert(reason).second) log().warn("{}", message);
}

Explanation Dispatcher::explain(const OpCall& call) {
  call.op->check(call);
  const Specialization spec = specialize(call);
  std::shared_lock building(building_);
  const Session session = this->session();
  const auto describe = [&](const Specialization& which) {
    return Explanation{which.text(), build_key(which).digest(),
                       which.is_generic() ? "generic" : "specialized", "", ""};
  };
  if (const Variant* variant = table_.look_up(spec)) {
    auto result = describe(variant->is_fallback ? spec.generic() : spec);
    result.source = "loaded";
    result.reason = variant->is_fallback ? variant->reason : "it runs already in this process";
    return result;
  }
  auto result = describe(spec);
  if (get(session, build_key(spec))) {
    result.source = "cache";
    result.reason = "an entry of this key lies in a cache layer";
    return result;
  }
  const auto why = why_not_compile(session);
  if (why.empty()) {
    result.source = "compile";
    result.reason = "no cache layer has it; the first call compiles it";
    return result;
  }
  result = describe(spec.generic());
  const bool found = get(session, build_key(spec.generic())).has_value();
  result.source = found ? "cache" : "none";
  result.reason = why;
  return result;
}

CacheInfo Dispatcher::cache_info() const {
  return {memory_hits_.load(), disk_hits_.load(), compiles_.load(), fallbacks_.load()};
}

}  // namespace rlk::jit
