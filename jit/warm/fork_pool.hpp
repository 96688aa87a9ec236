// SPDX-License-Identifier: Apache-2.0
// Runs jobs in forked processes: a compiler has locks of its own that threads would wait for, and
// one that dies takes its job along and no other.
#pragma once

#include "runtime/function_ref.hpp"

#include <cstddef>
#include <optional>
#include <string>

namespace rlk::jit {

class ForkPool {
 public:
  ForkPool();
  ForkPool(const ForkPool&) = delete;
  ForkPool& operator=(const ForkPool&) = delete;
  ~ForkPool();

  // Calls job(0) to job(count - 1), each in one of `num_processes` children, and tells what it
  // returned, a line of text, in this process; nothing if its process died. Returns when all have
  // ended. `should_stop` is asked every now and then: once it says so no further job begins. This
  // process must have one thread. Throws Error where it cannot fork.
  void run(std::size_t count, int num_processes, runtime::FunctionRef<std::string(std::size_t)> job,
           runtime::FunctionRef<void(std::size_t, const std::optional<std::string>&)> tell,
           runtime::FunctionRef<bool()> should_stop);

  // Whether the jobs were told to stop, for a job to ask while it runs.
  bool is_stopped() const;

 private:
  struct Shared;
  Shared* shared_;
};

}  // namespace rlk::jit
