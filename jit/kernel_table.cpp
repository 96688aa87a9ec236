// SPDX-License-Identifier: Apache-2.0
// Lock-free look-up; building is one thread a key; unloading waits for readers.
#include "jit/kernel_table.hpp"

#include "jit/hazard_pointer.hpp"
#include "runtime/error.hpp"

#include <algorithm>
#include <chrono>
#include <new>
#include <set>

namespace rlk::jit {
namespace {
constexpr std::size_t k_initial_slots = 1024;
}

KernelTable::Held::~Held() {
  if (entry_ != nullptr) hazard_pointer().store(nullptr, std::memory_order_release);
}

KernelTable::KernelTable() {
  tables_.push_back(std::make_unique<Slots>(k_initial_slots));
  current_.store(tables_.back().get(), std::memory_order_release);
}

KernelTable::~KernelTable() = default;

KernelTable::Held KernelTable::look_up(const Specialization& spec) {
  const Slot* slot = find_slot(*current_.load(std::memory_order_acquire), spec);
  if (slot == nullptr) return {};
  Entry* entry = slot->entry.load(std::memory_order_acquire);
  while (entry != &absent_) {
    hazard_pointer().store(entry);
    // Read again: whoever took it out before that store did not see us.
    if (Entry* now = slot->entry.load(); now != entry) {
      entry = now;
      continue;
    }
    entry->last_used.store(clock_.fetch_add(1, std::memory_order_relaxed),
                           std::memory_order_relaxed);
    return Held(entry);
  }
  hazard_pointer().store(nullptr, std::memory_order_release);
  return {};
}

KernelTable::Held KernelTable::look_up_or_build(const Specialization& spec,
                                                const std::function<Variant()>& build) {
  std::unique_lock lock(mutex_);
  while (true) {
    if (Entry* ready = find(spec)) return hold(ready);
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
  changed_.notify_all();
  if (failure) std::rethrow_exception(failure);
  return hold(put(spec, std::move(built)));
}

KernelTable::Held KernelTable::replace_fallback(const Specialization& spec, Variant variant) {
  const std::lock_guard lock(mutex_);
  Entry* now = find(spec);
  if (now != nullptr && !now->variant.is_fallback) return hold(now);
  return hold(put(spec, std::move(variant)));
}

void KernelTable::forget_fallbacks() {
  const std::lock_guard lock(mutex_);
  std::erase_if(pending_, [](const auto& entry) { return entry.second != nullptr; });
  for (Slot& slot : tables_.back()->slots) {
    const Entry* entry = slot.entry.load(std::memory_order_relaxed);
    if (entry != nullptr && entry->variant.is_fallback) take_out(slot.spec);
  }
}

std::vector<KernelPtr> KernelTable::take_surplus(std::size_t most) {
  std::vector<KernelPtr> free;
  const std::lock_guard lock(mutex_);
  retire_surplus(most);
  std::erase_if(retired_, [&](const auto& entry) {
    if (entry->is_pinned || is_read_by_a_thread(entry.get())) return false;
    if (entry->may_be_unloaded) free.push_back(std::move(entry->variant.kernel));
    return true;
  });
  return free;
}

std::size_t KernelTable::num_loaded() const {
  const std::lock_guard lock(mutex_);
  std::set<const LoadedKernel*> kernels;  // one may run for several keys
  for (const Entries* entries : {&entries_, &retired_}) {
    for (const auto& entry : *entries) {
      if (entry->may_be_unloaded) kernels.insert(entry->variant.kernel.get());
    }
  }
  return kernels.size();
}

// Null where the table does not have the key.
KernelTable::Slot* KernelTable::find_slot(Slots& table, const Specialization& spec) {
  const std::size_t mask = table.slots.size() - 1;
  for (std::size_t i = spec.hash() & mask;; i = (i + 1) & mask) {
    Slot& slot = table.slots[i];
    if (slot.entry.load(std::memory_order_acquire) == nullptr) return nullptr;
    if (slot.spec == spec) return &slot;
  }
}

void KernelTable::insert(Slots& table, const Specialization& spec, Entry* entry) {
  const std::size_t mask = table.slots.size() - 1;
  std::size_t i = spec.hash() & mask;
  while (table.slots[i].entry.load(std::memory_order_relaxed) != nullptr) i = (i + 1) & mask;
  table.slots[i].spec = spec;
  table.slots[i].entry.store(entry, std::memory_order_release);
  ++table.num_used;
}

// The functions from here on are called with the lock held.

KernelTable::Held KernelTable::hold(Entry* entry) const {
  hazard_pointer().store(entry);
  return Held(entry);
}

KernelTable::Entry* KernelTable::find(const Specialization& spec) {
  const Slot* slot = find_slot(*tables_.back(), spec);
  if (slot == nullptr) return nullptr;
  Entry* entry = slot->entry.load(std::memory_order_relaxed);
  return entry == &absent_ ? nullptr : entry;
}

KernelTable::Entry* KernelTable::put(const Specialization& spec, Variant variant) {
  take_out(spec);
  auto entry = std::make_unique<Entry>();
  entry->variant = std::move(variant);
  const bool is_specialized = !entry->variant.is_fallback || entry->variant.is_alternative;
  entry->may_be_unloaded = is_specialized && !spec.is_generic();
  entry->last_used = clock_.fetch_add(1, std::memory_order_relaxed);
  if (Slot* slot = find_slot(*tables_.back(), spec)) {
    slot->entry.store(entry.get());
  } else {
    if (2 * (tables_.back()->num_used + 1) > tables_.back()->slots.size()) grow();
    insert(*tables_.back(), spec, entry.get());
  }
  entries_.push_back(std::move(entry));
  return entries_.back().get();
}

// From every table: a reader may still be in an old one.
void KernelTable::take_out(const Specialization& spec) {
  const Entry* entry = find(spec);
  if (entry == nullptr) return;
  for (const auto& table : tables_) {
    if (Slot* slot = find_slot(*table, spec)) slot->entry.store(&absent_);
  }
  const auto place = std::ranges::find(entries_, entry, &std::unique_ptr<Entry>::get);
  retired_.push_back(std::move(*place));
  entries_.erase(place);
}

void KernelTable::grow() {
  auto larger = std::make_unique<Slots>(2 * tables_.back()->slots.size());
  for (const Slot& old : tables_.back()->slots) {
    Entry* entry = old.entry.load(std::memory_order_relaxed);
    if (entry != nullptr && entry != &absent_) insert(*larger, old.spec, entry);
  }
  tables_.push_back(std::move(larger));
  current_.store(tables_.back().get(), std::memory_order_release);
}

void KernelTable::retire_surplus(std::size_t most) {
  struct Candidate {
    std::int64_t last_used;
    Specialization spec;
  };
  std::vector<Candidate> candidates;
  std::size_t num_specialized = 0;
  for (const Slot& slot : tables_.back()->slots) {
    const Entry* entry = slot.entry.load(std::memory_order_relaxed);
    if (entry == nullptr || !entry->may_be_unloaded) continue;
    ++num_specialized;
    if (!entry->is_pinned) candidates.push_back({entry->last_used, slot.spec});
  }
  if (num_specialized <= most) return;
  const std::size_t num_surplus = std::min(num_specialized - most, candidates.size());
  std::ranges::sort(candidates, {}, &Candidate::last_used);
  for (std::size_t i = 0; i < num_surplus; ++i) take_out(candidates[i].spec);
}

void KernelTable::lock_for_fork() { mutex_.lock(); }

void KernelTable::unlock_in_parent() { mutex_.unlock(); }

void KernelTable::reset_in_child() {
  mutex_.unlock();
  // Whoever was building or waiting is not in this process; a waiter count left in the condition
  // variable would make its destructor or next wait hang.
  new (&changed_) std::condition_variable;
  std::erase_if(pending_, [](const auto& entry) { return entry.second == nullptr; });
  forget_other_threads_hazards();
}

}  // namespace rlk::jit
