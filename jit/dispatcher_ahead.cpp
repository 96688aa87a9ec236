// SPDX-License-Identifier: Apache-2.0
// Kernels of a backward, compiled while its forward is: whoever calls it finds them, or waits for
// what is left of the compile. Errors stay here: the call itself meets them, and says so.
#include "jit/dispatcher.hpp"
#include "jit/layer_places.hpp"
#include "runtime/cpu_count.hpp"
#include "runtime/log.hpp"

#include <thread>

namespace rlk::jit {
namespace {
// Two compiles at once, and room: a compiler ends in the middle of things where it finds too
// little.
constexpr std::size_t k_least_bytes_ahead = std::size_t{1} << 30;
}  // namespace

// Of a call whose kernel is loaded; once a kernel.
void Dispatcher::begin_gradients(const OpCall& call, const Variant& variant) {
  const std::atomic_ref<bool> has_begun(variant.has_begun_gradients);
  if (has_begun.load(std::memory_order_relaxed)) return;
  const Toolchain& tools = call.device.kind == Device::Kind::cuda ? cuda_ : cpu_;
  if (tools.loader->is_capturing(call.device.index, call.stream)) return;
  if (has_begun.exchange(true)) return;
  const std::shared_lock building(building_);
  compile_gradients(call);
}

void Dispatcher::compile_gradients(const OpCall& call) {
  try {
    const Op& op = *call.op;
    const auto tuning = this->tuning(op, call.pass, call.device);
    for (const auto& spec : op.gradients(call, target(call.device), tuning)) {
      compile_ahead(specialize_.load(std::memory_order_relaxed) ? spec : spec.generic(),
                    call.device.index);
    }
  } catch (const std::exception& error) {
    log().debug("{}: nothing is compiled ahead: {}", call.op->name, error.what());
  }
}

void Dispatcher::compile_ahead(const Specialization& spec, int device) {
  // On one core the forward would wait for it.
  static const bool has_cores = runtime::usable_cpus() > 1;
  if (!has_cores || spec.is_generic() || table_.look_up(spec) != nullptr) return;
  const Missing missing = this->missing(spec, device);
  if (!missing.compiler.why_not.empty()) return;
  if (LayerPlaces(*missing.session.store, missing.compiler.identity).is_cached(spec)) return;
  runtime::expect_memory(k_least_bytes_ahead);
  auto kernel = std::make_shared<BackgroundKernel>();
  {
    const std::lock_guard lock(mutex_);
    if (!background_kernels_.try_emplace(spec, kernel).second) return;
  }
  try {
    ahead_.add([this, missing, kernel] {
      if (config().settings.policy == Policy::off) {  // by now
        forget_background(missing.spec);
        return;
      }
      run_in_background(missing, "", *kernel);
    });
  } catch (const std::exception&) {
    forget_background(spec);
    throw;
  }
}

std::shared_ptr<BackgroundKernel> Dispatcher::background(const Specialization& spec) const {
  const std::lock_guard lock(mutex_);
  const auto found = background_kernels_.find(spec);
  return found == background_kernels_.end() ? nullptr : found->second;
}

void Dispatcher::forget_background(const Specialization& spec) {
  const std::lock_guard lock(mutex_);
  background_kernels_.erase(spec);
}

// Null: nobody has begun it, or nothing came of it.
KernelPtr Dispatcher::wait_for_background(const Specialization& spec) {
  const auto kernel = background(spec);
  if (kernel == nullptr) return nullptr;
  if (!kernel->is_begun.exchange(true)) {  // it stands in a queue, this thread is here
    forget_background(spec);
    return nullptr;
  }
  building_.unlock_shared();  // a fork waits for builds, this one among them, not for who waits
  while (!kernel->is_done.load(std::memory_order_acquire) && !is_ending_) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  building_.lock_shared();
  return kernel->is_done.load(std::memory_order_acquire) ? kernel->kernel : nullptr;
}

}  // namespace rlk::jit
