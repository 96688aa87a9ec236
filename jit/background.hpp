// SPDX-License-Identifier: Apache-2.0
// Work behind the caller's back: a few threads that take jobs in order.
#pragma once

#include "runtime/thread.hpp"

#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <initializer_list>
#include <mutex>
#include <vector>

namespace rlk::jit {

// Threads start at the first job. A job must not throw.
class Background {
 public:
  using Job = std::function<void()>;

  enum class Priority { low, normal };  // low: the caller's threads come first

  Background(int num_threads, Priority priority) : num_threads_(num_threads), priority_(priority) {}
  ~Background() { stop(); }
  Background(const Background&) = delete;
  Background& operator=(const Background&) = delete;

  // Queues a job; false after stop(). Throws Refused where there is no thread to take it and the
  // system gives none: it is not queued then.
  bool add(Job job);

  // Whether nothing is queued or running, after waiting for that until then at most.
  bool wait_until(std::chrono::steady_clock::time_point deadline);

  // Drops what is queued and waits for what runs: a compiler cannot be left in the middle while its
  // library is being destroyed. Takes no job afterwards.
  void stop();

  // Around fork(): the child has no threads and no jobs, and may add some. While paused, no further
  // job begins, so that a fork need not wait for all that is queued.
  void pause() { set_paused(true); }
  void lock_for_fork() { mutex_.lock(); }
  void unlock_in_parent();
  void reset_in_child();

 private:
  void work();
  void set_paused(bool paused);

  const int num_threads_;
  const Priority priority_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Job> jobs_;
  int num_running_ = 0;
  bool stopped_ = false, paused_ = false;
  std::vector<runtime::Thread> threads_;
};

// Whether none of these has anything queued or running, after waiting at most so long in all.
bool wait_for(std::initializer_list<Background*> queues, std::chrono::milliseconds time);

}  // namespace rlk::jit
