// SPDX-License-Identifier: Apache-2.0
// The loaded kernels of a process. A look-up takes no lock; each key is built by one thread.
//
// States of a key: absent -> building -> ready | failed; ready -> absent where its kernel is
// unloaded or its fallback forgotten. Keys stand in an open-addressed table; a slot's key is
// written once, then its entry is published by a store. A full table is copied into a larger one
// and kept, since readers may still be inside it. An entry that is taken out of the slots is freed
// when no thread holds it.
#pragma once

#include "jit/specialization.hpp"
#include "runtime/loaded_kernel.hpp"

#include <atomic>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

namespace rlk::jit {

using KernelPtr = std::shared_ptr<const LoadedKernel>;

// A kernel that is being built in the background. The rest is written before `is_done` becomes
// true, and never afterwards.
struct ComingKernel {
  std::atomic<bool> is_done{false};
  KernelPtr kernel;     // null: it failed
  std::string failure;  // why
};

// What runs for a Specialization: its own kernel, or another one that gives the same bits.
struct Variant {
  KernelPtr kernel;
  bool is_fallback = false;
  bool is_alternative = false;  // a fallback that is specialized too, for another tile
  std::string reason = {};      // why the fallback runs
  std::shared_ptr<ComingKernel> coming = {};  // what will take its place, if anything will
};

// For messages.
inline std::string note_of(const Variant& fallback) {
  return fallback.is_alternative ? fallback.kernel->name + " runs instead"
                                 : "the generic kernel runs instead";
}

class KernelTable {
  struct Entry {
    Variant variant;
    bool may_be_unloaded = false;
    std::atomic<std::int64_t> last_used{0};  // by the table's clock
    std::atomic<bool> is_pinned{false};
  };

 public:
  // A ready variant, which is not freed while this lives. At most one a thread: a launch does not
  // call back into rlk.
  class Held {
   public:
    Held() = default;
    Held(Held&& other) noexcept : entry_(std::exchange(other.entry_, nullptr)) {}
    Held& operator=(Held&& other) noexcept {
      entry_ = std::exchange(other.entry_, nullptr);
      return *this;
    }
    ~Held();

    explicit operator bool() const { return entry_ != nullptr; }
    const Variant& operator*() const { return entry_->variant; }
    const Variant* operator->() const { return &entry_->variant; }

    // A pinned kernel is never unloaded: a captured graph may launch it at any time.
    bool may_be_unloaded() const {
      return entry_->may_be_unloaded && !entry_->is_pinned.load(std::memory_order_relaxed);
    }
    void pin() const { entry_->is_pinned = true; }

   private:
    friend class KernelTable;
    explicit Held(Entry* entry) : entry_(entry) {}
    Entry* entry_ = nullptr;
  };

  KernelTable();
  ~KernelTable();
  KernelTable(const KernelTable&) = delete;
  KernelTable& operator=(const KernelTable&) = delete;

  // Stage 4. Empty where nothing is loaded for this key. Any thread; no lock, no allocation.
  Held look_up(const Specialization& spec);

  // Holds the ready variant, or calls build() in this thread; other threads that ask for the
  // same key wait, those with other keys do not. What build() throws is thrown to every waiter and,
  // where it is a CompileError or LoadError, again on each later ask.
  Held look_up_or_build(const Specialization& spec, const std::function<Variant()>& build);

  // Puts a variant in the place of the fallback of this key; other threads see either. Holds what
  // is there now: another thread may have been first.
  Held replace_fallback(const Specialization& spec, Variant variant);

  // Drops fallbacks and failures, so that changed settings are asked again.
  void forget_fallbacks();

  // Takes specialized kernels out, the least recently used first, until at most so many are left,
  // and gives those that nobody holds, to be destroyed; one that is held comes at a later call, one
  // that is pinned never.
  std::vector<KernelPtr> take_surplus(std::size_t most);

  // Specialized kernels that are loaded.
  std::size_t num_loaded() const;

  // Around fork(): the child starts with no key in building.
  void lock_for_fork();
  void unlock_in_parent();
  void reset_in_child();

 private:
  struct Slot {
    std::atomic<Entry*> entry{nullptr};  // null: free; &absent_: nothing is loaded for its key
    Specialization spec;
  };
  struct Slots {
    explicit Slots(std::size_t count) : slots(count) {}
    std::vector<Slot> slots;  // a power of two
    std::size_t num_used = 0;
  };
  using Entries = std::vector<std::unique_ptr<Entry>>;

  static Slot* find_slot(Slots& table, const Specialization& spec);
  static void insert(Slots& table, const Specialization& spec, Entry* entry);
  Held hold(Entry* entry) const;
  Entry* find(const Specialization& spec);
  Entry* put(const Specialization& spec, Variant variant);
  void take_out(const Specialization& spec);
  void grow();
  void retire_surplus(std::size_t most);

  Entry absent_;  // stands for no entry
  std::atomic<Slots*> current_;
  std::atomic<std::int64_t> clock_{0};
  mutable std::mutex mutex_;  // guards what follows
  std::condition_variable changed_;
  std::unordered_map<Specialization, std::exception_ptr, SpecializationHash>
      pending_;                                 // null: building
  std::vector<std::unique_ptr<Slots>> tables_;  // the last is current
  Entries entries_;                             // in slots
  Entries retired_;                             // in none
};

}  // namespace rlk::jit
