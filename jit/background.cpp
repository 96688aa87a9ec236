// SPDX-License-Identifier: Apache-2.0
// A queue and the threads that empty it.
#include "jit/background.hpp"

#include "runtime/refused.hpp"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <new>

namespace rlk::jit {
namespace {

void step_back() {
  constexpr int k_lowest = 19;
  setpriority(PRIO_PROCESS, static_cast<id_t>(gettid()), k_lowest);
}

}  // namespace

bool Background::add(Job job) {
  const std::lock_guard lock(mutex_);
  if (stopped_) return false;
  jobs_.push_back(std::move(job));
  const auto wanted = jobs_.size() + static_cast<std::size_t>(num_running_);
  if (threads_.size() < wanted && std::ssize(threads_) < num_threads_) {
    try {
      threads_.emplace_back(runtime::k_compile_stack_bytes, [this] { work(); });
    } catch (const std::exception&) {
      if (threads_.empty()) {  // else one that is there takes the job later
        jobs_.pop_back();
        throw;
      }
    }
  }
  changed_.notify_all();
  return true;
}

void Background::work() {
  if (priority_ == Priority::low) step_back();
  std::unique_lock lock(mutex_);
  while (true) {
    // Not wait(): GCC 12 gave it a new symbol, which the libstdc++ of RHEL 9 lacks.
    changed_.wait_until(lock, std::chrono::steady_clock::time_point::max(),
                        [&] { return stopped_ || (!paused_ && !jobs_.empty()); });
    if (stopped_) return;
    {
      const Job job = std::move(jobs_.front());
      jobs_.pop_front();
      ++num_running_;
      lock.unlock();
      job();
    }
    lock.lock();
    --num_running_;
    changed_.notify_all();
  }
}

bool Background::wait_until(std::chrono::steady_clock::time_point deadline) {
  std::unique_lock lock(mutex_);
  return changed_.wait_until(lock, deadline, [&] { return jobs_.empty() && num_running_ == 0; });
}

void Background::stop() {
  std::deque<Job> dropped;
  std::vector<runtime::Thread> threads;  // ended by their destructors
  {
    const std::lock_guard lock(mutex_);
    stopped_ = true;
    dropped.swap(jobs_);
    threads.swap(threads_);
    changed_.notify_all();
  }
}

void Background::set_paused(bool paused) {
  const std::lock_guard lock(mutex_);
  paused_ = paused;
  changed_.notify_all();
}

void Background::unlock_in_parent() {
  mutex_.unlock();
  set_paused(false);
}

void Background::reset_in_child() {
  // The parent's threads and waiters are not in this process: what counts them is made anew, not
  // destroyed, which would wait for them.
  new (&changed_) std::condition_variable;
  new (&threads_) std::vector<runtime::Thread>;
  new (&jobs_) std::deque<Job>;
  num_running_ = 0;
  paused_ = false;
  mutex_.unlock();
}

bool wait_for(std::initializer_list<Background*> queues, std::chrono::milliseconds time) {
  const auto deadline = std::chrono::steady_clock::now() + time;
  return std::ranges::all_of(queues,
                             [&](Background* queue) { return queue->wait_until(deadline); });
}

}  // namespace rlk::jit
