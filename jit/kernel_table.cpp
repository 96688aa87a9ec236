// SPDX-License-Identifier: Apache-2.0
// Lock-free look-up; building is one thread a key.
#include "jit/kernel_table.hpp"

#include "runtime/refused.hpp"

#include <chrono>
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
  const Slot* slot = find_slot(*current_.load(std::memory_order_acquire), spec);
  if (slot == nullptr) return nullptr;
  const Variant* variant = slot->variant.load(std::memory_order_acquire);
  return variant == &absent_ ? nullptr : variant;
}

const Variant& KernelTable::look_up_or_build(const Specialization& spec,
                                             const std::function<Variant()>& build) {
  std::unique_lock lock(mutex_);
  while (true) {
    if (const Variant* ready = look_up(spec)) return *ready;
    const auto pending = pending_.find(spec);
    if (pending == pending_.end()) break;
    if (pending->second) std::rethrow_exception(pending->second);
    // Not wait(): GCC 12 gave it a new symbol, which the libstdc++ of RHEL 9 lacks.
    changed_.wait_until(lock, std::chrono::steady_clock::time_point::max());
  }
  pending_.emplace(spec, nullptr);
  lock.unlock();

  Variant built;
  std::exception_ptr failure;
  bool remember = false;
  try {
    built = build();
  } catch (const Error& error) {
    failure = std::current_exception();
    remember = !is_refusal(error) && (dynamic_cast<const CompileError*>(&error) != nullptr ||
                                      dynamic_cast<const LoadError*>(&error) != nullptr);
  } catch (...) {
    failure = std::current_exception();
  }

  lock.lock();
  if (remember) {
    pending_[spec] = failure;
  } else {
    pending_.erase(spec);
  }
  changed_.notify_all();
  if (failure) std::rethrow_exception(failure);
  if (built.is_refused) return refused_.try_emplace(spec, std::move(built)).first->second;
  return put(spec, std::move(built));
}

const Variant& KernelTable::replace_fallback(const Specialization& spec, Variant variant) {
  const std::lock_guard lock(mutex_);
  const Variant* now = look_up(spec);
  if (now != nullptr && !now->is_fallback()) return *now;
  return put(spec, std::move(variant));
}

void KernelTable::forget_fallbacks() {
  const std::lock_guard lock(mutex_);
  std::erase_if(pending_, [](const auto& entry) { return entry.second != nullptr; });
  for (Slot& slot : tables_.back()->slots) {
    const Variant* variant = slot.variant.load(std::memory_order_relaxed);
    if (variant != nullptr && variant->is_fallback()) {
      slot.variant.store(&absent_, std::memory_order_release);
    }
  }
}

void KernelTable::forget_fallback(const Specialization& spec) {
  const std::lock_guard lock(mutex_);
  const Variant* now = look_up(spec);
  if (now == nullptr || !now->is_fallback()) return;
  find_slot(*tables_.back(), spec)->variant.store(&absent_, std::memory_order_release);
}

std::size_t KernelTable::num_loaded() const {
  const std::lock_guard lock(mutex_);
  return specialized_.size();
}

// Null where the table does not have the key.
KernelTable::Slot* KernelTable::find_slot(Slots& table, const Specialization& spec) {
  const std::size_t mask = table.slots.size() - 1;
  for (std::size_t i = spec.hash() & mask;; i = (i + 1) & mask) {
    Slot& slot = table.slots[i];
    if (slot.variant.load(std::memory_order_acquire) == nullptr) return nullptr;
    if (slot.spec == spec) return &slot;
  }
}

void KernelTable::insert(Slots& table, const Specialization& spec, const Variant* variant) {
  const std::size_t mask = table.slots.size() - 1;
  std::size_t i = spec.hash() & mask;
  while (table.slots[i].variant.load(std::memory_order_relaxed) != nullptr) i = (i + 1) & mask;
  table.slots[i].spec = spec;
  table.slots[i].variant.store(variant, std::memory_order_release);
  ++table.num_used;
}

// The functions from here on are called with the lock held.

const Variant& KernelTable::put(const Specialization& spec, Variant variant) {
  const Variant& kept = variants_.emplace_back(std::move(variant));
  // One kernel may run for several keys.
  if (kept.fallback != Fallback::generic && !spec.is_generic())
    specialized_.insert(kept.kernel.get());
  if (Slot* slot = find_slot(*tables_.back(), spec)) {
    slot->variant.store(&kept, std::memory_order_release);
  } else {
    if (2 * (tables_.back()->num_used + 1) > tables_.back()->slots.size()) grow();
    insert(*tables_.back(), spec, &kept);
  }
  return kept;
}

void KernelTable::grow() {
  auto larger = std::make_unique<Slots>(2 * tables_.back()->slots.size());
  for (const Slot& old : tables_.back()->slots) {
    const Variant* variant = old.variant.load(std::memory_order_relaxed);
    if (variant != nullptr && variant != &absent_) insert(*larger, old.spec, variant);
  }
  tables_.push_back(std::move(larger));
  current_.store(tables_.back().get(), std::memory_order_release);
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
