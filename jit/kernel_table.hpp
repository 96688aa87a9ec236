// SPDX-License-Identifier: Apache-2.0
// The loaded kernels of a process. A look-up takes no lock; each key is built by one thread.
//
// States of a key: absent -> building -> ready | failed. Ready keys stand in an open-addressed
// table that only grows: a slot is written once, then published by a release store, so a reader
// needs one acquire load a probe. A full table is copied into a larger one and kept, since readers
// may still be inside it.
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
#include <vector>

namespace rlk::jit {

// A kernel that is being built in the background: null until it is loaded.
using ComingKernel = std::atomic<const LoadedKernel*>;

// What runs for a Specialization: its own kernel, or the generic one in its place.
struct Variant {
  const LoadedKernel* kernel = nullptr;
  bool is_fallback = false;
  std::string reason = {};                    // why the generic one runs
  std::shared_ptr<ComingKernel> coming = {};  // what will take its place, if anything will
};

class KernelTable {
 public:
  KernelTable();
  ~KernelTable();
  KernelTable(const KernelTable&) = delete;
  KernelTable& operator=(const KernelTable&) = delete;

  // Stage 4. Null where nothing is loaded for this key. Any thread; no lock, no allocation.
  const Variant* look_up(const Specialization& spec) const;

  // Returns the ready variant, or calls build() in this thread; other threads that ask for the
  // same key wait, those with other keys do not. What build() throws is thrown to every waiter and,
  // where it is a CompileError or LoadError, again on each later ask.
  const Variant& look_up_or_build(const Specialization& spec,
                                  const std::function<Variant()>& build);

  // Puts a variant in the place of the fallback of this key; other threads see either. Returns what
  // is there now: another thread may have been first.
  const Variant& replace_fallback(const Specialization& spec, Variant variant);

  // Drops fallbacks and failures, so that changed settings are asked again.
  void forget_fallbacks();

  // Owned by the table until the process ends.
  const LoadedKernel* keep(std::unique_ptr<LoadedKernel> kernel);

  // Around fork(): the child starts with no key in building.
  void lock_for_fork();
  void unlock_in_parent();
  void reset_in_child();

 private:
  struct Slot {
    std::atomic<const Variant*> variant{nullptr};
    Specialization spec;
  };
  struct Slots {
    explicit Slots(std::size_t count) : slots(count) {}
    std::vector<Slot> slots;  // a power of two
    std::size_t num_used = 0;
  };
  struct Failure;

  void publish(const Specialization& spec, const Variant* variant);
  static void insert(Slots& into, const Specialization& spec, const Variant* variant);

  std::atomic<Slots*> current_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::unordered_map<Specialization, std::exception_ptr, SpecializationHash>
      pending_;                                 // null: building
  std::vector<std::unique_ptr<Slots>> tables_;  // the last is current
  std::vector<std::unique_ptr<Variant>> variants_;
  std::vector<std::unique_ptr<LoadedKernel>> kernels_;
};

}  // namespace rlk::jit
