// SPDX-License-Identifier: Apache-2.0
// The loaded kernels of a process. A look-up takes no lock; each key is built by one thread.
//
// States of a key: absent -> building -> ready | failed; ready -> absent where its fallback is
// forgotten. Keys stand in an open-addressed table; a slot's key is written once, then its variant
// is published by a store. A full table is copied into a larger one. Nothing is freed while the
// table lives: neither a variant that was replaced or forgotten nor a table that was outgrown,
// since readers may still be inside it, nor a kernel, since captured graphs may launch it.
#pragma once

#include "jit/decision.hpp"
#include "jit/specialization.hpp"
#include "runtime/loaded_kernel.hpp"

#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

namespace rlk::jit {

using KernelPtr = std::shared_ptr<const LoadedKernel>;

// A kernel that is built in the background. The rest is written before `is_done` becomes true, and
// never afterwards.
struct BackgroundKernel {
  std::atomic<bool> is_begun{false};  // whoever sets it builds it
  std::atomic<bool> is_done{false};
  KernelPtr kernel;         // null: it failed
  std::string failure;      // why
  bool is_refused = false;  // by the system
};

// What runs for a Specialization: its own kernel, or another one that gives the same bits.
struct Variant {
  KernelPtr kernel;
  Fallback fallback = Fallback::none;
  std::string reason = {};                            // why the fallback runs
  std::shared_ptr<BackgroundKernel> background = {};  // what will take its place, if anything will
  bool is_refused = false;  // a resource was refused: of this call alone, the next one asks again
  // Whether the kernels of its gradients were begun, at a call that needs them.
  mutable bool has_begun_gradients = false;  // by std::atomic_ref

  bool is_fallback() const { return fallback != Fallback::none; }
};

// For messages.
inline std::string note_of(const Variant& fallback) {
  return fallback.fallback == Fallback::alternative ? fallback.kernel->name + " runs instead"
                                                    : "the generic kernel runs instead";
}

class KernelTable {
 public:
  KernelTable();
  ~KernelTable();
  KernelTable(const KernelTable&) = delete;
  KernelTable& operator=(const KernelTable&) = delete;

  // Stage 4. Null where nothing is loaded for this key. Any thread; no lock, no allocation.
  const Variant* look_up(const Specialization& spec) const;

  // The ready variant, or what build() makes of it in this thread; other threads that ask for the
  // same key wait, those with other keys do not. What build() throws is thrown to every waiter and,
  // where it is a CompileError or LoadError, again on each later ask. What was refused by the
  // system is not remembered, neither as an error nor as a fallback.
  const Variant& look_up_or_build(const Specialization& spec,
                                  const std::function<Variant()>& build);

  // Puts a variant in the place of the fallback of this key; other threads see either. Gives what
  // is there now: another thread may have been first.
  const Variant& replace_fallback(const Specialization& spec, Variant variant);

  // Drops fallbacks and failures, so that changed settings are asked again; or one key's fallback.
  void forget_fallbacks();
  void forget_fallback(const Specialization& spec);

  // Specialized kernels that are loaded.
  std::size_t num_loaded() const;

  // Around fork(): the child starts with no key in building.
  void lock_for_fork();
  void unlock_in_parent();
  void reset_in_child();

 private:
  struct Slot {
    std::atomic<const Variant*> variant{nullptr};  // null: free; &absent_: nothing for its key
    Specialization spec;
  };
  struct Slots {
    explicit Slots(std::size_t count) : slots(count) {}
    std::vector<Slot> slots;  // a power of two
    std::size_t num_used = 0;
  };

  static Slot* find_slot(Slots& table, const Specialization& spec);
  static void insert(Slots& table, const Specialization& spec, const Variant* variant);
  const Variant& put(const Specialization& spec, Variant variant);
  void grow();

  const Variant absent_;  // stands for no variant
  std::atomic<Slots*> current_;
  mutable std::mutex mutex_;  // guards what follows
  std::condition_variable changed_;
  std::unordered_map<Specialization, std::exception_ptr, SpecializationHash>
      pending_;                                 // null: building
  std::vector<std::unique_ptr<Slots>> tables_;  // the last is current
  std::deque<Variant> variants_;                // all that ever were, at addresses that stay
  std::unordered_map<Specialization, Variant, SpecializationHash> refused_;  // the first of a key
  std::unordered_set<const LoadedKernel*> specialized_;
};

}  // namespace rlk::jit
