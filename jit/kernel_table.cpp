// SPDX-License-Identifier: Apache-2.0
// Lock-free look-up over slots that are written once; building is one thread a key.
#include "jit/kernel_table.hpp"

#include "runtime/error.hpp"

#include <algorithm>
#include <new>

namespace rlk::jit {
namespace {
constexpr std::size_t k_initial_slots = 1024;
}

KernelTable::KernelTable() {
  tables_.push_back(std::make_unique<Slots>(k_initial_slots));
  current_.store(tables_.back().get(), std::memory_order_release);
}

KernelTable::~KernelTable() = default;

const Variant* KernelTable::look_up(const Specialization& spec) const {
  const Slots& table = *current_.load(std::memory_order_acquire);
  const std::size_t mask = table.slots.size() - 1;
  for (std::size_t i = spec.hash() & mask;; i = (i + 1) & mask) {
    const Variant* variant = table.slots[i].variant.load(std::memory_order_acquire);
    if (variant == nullptr) return nullptr;
    if (table.slots[i].spec == spec) return variant;
  }
}

void KernelTable::insert(Slots& into, const Specialization& spec, const Variant* variant) {
  const std::size_t mask = into.slots.size() - 1;
  std::size_t i = spec.hash() & mask;
  while (into.slots[i].variant.load(std::memory_order_relaxed) != nullptr) i = (i + 1) & mask;
  into.slots[i].spec = spec;
  into.slots[i].variant.store(variant, std::memory_order_release);
  ++into.num_used;
}

void KernelTable::publish(const Specialization& spec, const Variant* variant) {
  Slots& table = *tables_.back();
  if (2 * (table.num_used + 1) > table.slots.size()) {
    auto larger = std::make_unique<Slots>(2 * table.slots.size());
    for (const Slot& slot : table.slots) {
      if (const Variant* old = slot.variant.load(std::memory_order_relaxed)) {
        insert(*larger, slot.spec, old);
      }
    }
    tables_.push_back(std::move(larger));
  }
  insert(*tables_.back(), spec, variant);
  current_.store(tables_.back().get(), std::memory_order_release);
}

const Variant& KernelTable::look_up_or_build(const Specialization& spec,
                                             const std::function<Variant()>& build) {
  std::unique_lock lock(mutex_);
  while (true) {
    if (const Variant* ready = look_up(spec)) return *ready;
    const auto pending = pending_.find(spec);
    if (pending == pending_.end()) break;
    if (pending->second) std::rethrow_exception(pending->second);
    changed_.wait(lock);
  }
  pending_.emplace(spec, nullptr);
  lock.unlock();

  std::unique_ptr<Variant> built;
  std::exception_ptr failure;
  bool remember = false;
  try {
    built = std::make_unique<Variant>(build());
  } catch (const CompileError&) {
    failure = std::current_exception();
    remember = true;
  } catch (const LoadError&) {
    failure = std::current_exception();
    remember = true;
  } catch (...) {
    failure = std::current_exception();
  }

  lock.lock();
  if (remember) {
    pending_[spec] = failure;
  } else {
    pending_.erase(spec);
  }
  if (built) {
    variants_.push_back(std::move(built));
    publish(spec, variants_.back().get());
  }
  changed_.notify_all();
  if (failure) std::rethrow_exception(failure);
  return *variants_.back();
}

const Variant& KernelTable::replace_fallback(const Specialization& spec, Variant variant) {
  std::lock_guard lock(mutex_);
  Slots& table = *tables_.back();
  const std::size_t mask = table.slots.size() - 1;
  for (std::size_t i = spec.hash() & mask;; i = (i + 1) & mask) {
    Slot& slot = table.slots[i];
    const Variant* const now = slot.variant.load(std::memory_order_relaxed);
    if (now != nullptr && !(slot.spec == spec)) continue;
    if (now != nullptr && !now->is_fallback) return *now;
    variants_.push_back(std::make_unique<Variant>(std::move(variant)));
    const Variant* const fresh = variants_.back().get();
    if (now == nullptr) {  // dropped by forget_fallbacks meanwhile
      publish(spec, fresh);
    } else {
      slot.variant.store(fresh, std::memory_order_release);
    }
    return *fresh;
  }
}

void KernelTable::forget_fallbacks() {
  std::lock_guard lock(mutex_);
  std::erase_if(pending_, [](const auto& entry) { return entry.second != nullptr; });
  const auto is_fallback = [](const auto& variant) { return variant->is_fallback; };
  if (std::ranges::none_of(variants_, is_fallback)) return;
  auto fresh = std::make_unique<Slots>(tables_.back()->slots.size());
  for (const Slot& slot : tables_.back()->slots) {
    const Variant* variant = slot.variant.load(std::memory_order_relaxed);
    if (variant != nullptr && !variant->is_fallback) insert(*fresh, slot.spec, variant);
  }
  tables_.push_back(std::move(fresh));
  current_.store(tables_.back().get(), std::memory_order_release);
}

const LoadedKernel* KernelTable::keep(std::unique_ptr<LoadedKernel> kernel) {
  std::lock_guard lock(mutex_);
  kernels_.push_back(std::move(kernel));
  return kernels_.back().get();
}

void KernelTable::lock_for_fork() { mutex_.lock(); }

void KernelTable::unlock_in_parent() { mutex_.unlock(); }

void KernelTable::reset_in_child() {
  mutex_.unlock();
  // Whoever was building or waiting is not in this process; a waiter count left in the condition
  // variable would make its destructor or next wait hang.
  new (&changed_) std::condition_variable;
  std::erase_if(pending_, [](const auto& entry) { return entry.second == nullptr; });
}

}  // namespace rlk::jit
