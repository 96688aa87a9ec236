// SPDX-License-Identifier: Apache-2.0
// The pool that runs ranges of a CPU kernel over threads.
#pragma once

#include "runtime/function_ref.hpp"
#include "runtime/thread.hpp"

#include <atomic>
#include <chrono>
#include <cstdint>
#include <exception>
#include <limits>
#include <mutex>
#include <vector>

namespace rlk::runtime {

// Threads start at the first run() that needs them. Where the system gives fewer, those serve, and
// the rest is asked for again a second later. A forked child has a fresh pool, whatever its
// parent's pool was doing. Calls from several threads take turns; one chunk alone never waits.
class ThreadPool {
 public:
  // Items [begin, end), by worker 0 .. num_threads() - 1. No two ranges run at once under one
  // worker number, so it may index scratch memory.
  using Body = FunctionRef<void(std::int64_t begin, std::int64_t end, int worker)>;

  // The process's pool, never destroyed. Do not keep the reference across a fork.
  static ThreadPool& instance();

  // Holds from the next run(); 0 or less asks for default_num_threads(). Survives a fork.
  static void set_num_threads(int num_threads);
  int num_threads() const;

  // Calls body on [0, count) in chunks of grain items, handed out in ascending order, and returns
  // when all are done. The caller is worker 0. Give max_workers where scratch was sized from an
  // earlier num_threads(), which another thread may have changed since. Inside a body: runs inline
  // as worker 0 of its own. The first exception of a body is rethrown here; chunks not yet begun
  // are then left out.
  void run(std::int64_t count, std::int64_t grain, Body body,
           int max_workers = std::numeric_limits<int>::max());

  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

 private:
  // What the workers read of the run in progress; written only while none of them reads it.
  struct Job {
    const Body* body = nullptr;
    std::int64_t count = 0;
    std::int64_t grain = 1;
    int num_workers = 1;
    std::atomic<std::int64_t> next{0};
    std::atomic<bool> failed{false};
    std::exception_ptr error;
  };

  ThreadPool() = default;
  ~ThreadPool();
  void resize(int num_threads);
  void worker_loop(int worker);
  void take_chunks(int worker) noexcept;

  std::mutex run_mutex_;                            // one run at a time; guards the two below
  std::vector<Thread> threads_;                     // worker i + 1 at i
  std::chrono::steady_clock::time_point retry_at_;  // after a refusal
  std::atomic<int> size_{1};  // as asked for, the caller counted in; workers beyond it end
  Job job_;
  // Odd while a job is open. Workers sleep on it.
  alignas(64) std::atomic<std::uint32_t> epoch_{0};
  // How many workers read job_. The caller sleeps on it.
  alignas(64) std::atomic<std::uint32_t> num_active_{0};
};

}  // namespace rlk::runtime
