// SPDX-License-Identifier: Apache-2.0
// A worker joins a job by raising num_active_ before it reads epoch_; the caller closes the epoch
// before it reads num_active_. All four are sequentially consistent, so either the worker sees the
// job closed or the caller waits for it. A worker that wakes too late is never waited for.
#include "runtime/thread_pool.hpp"

#include "runtime/cpu_count.hpp"
#include "runtime/log.hpp"

#include <pthread.h>

#include <algorithm>
#include <utility>

namespace rlk::runtime {
namespace {

std::atomic<ThreadPool*> current_pool{nullptr};
std::atomic<int> wanted_num_threads{0};
std::atomic<bool> has_warned{false};  // of refused threads
thread_local bool inside_body = false;

using Clock = std::chrono::steady_clock;
// Of a kernel's frames the largest is 8 KiB.
constexpr std::size_t k_stack_bytes = std::size_t{1} << 20;

// Registered when the library is loaded: a handler added at first use could itself be caught half
// done by a fork. The child's copy of the old pool is left alone, its threads do not exist.
[[maybe_unused]] const int fork_handler = pthread_atfork(
    nullptr, nullptr, [] { current_pool.store(nullptr, std::memory_order_relaxed); });

// Returns when value differs from old. Steps of one call follow each other within microseconds, so
// polling for a while first saves the sleep; after that the thread costs nothing.
void wait_for_change(const std::atomic<std::uint32_t>& value, std::uint32_t old) {
  constexpr auto spin = std::chrono::microseconds(20);
  const auto end = Clock::now() + spin;
  do {
    for (int i = 0; i < 16; ++i) {
      if (value.load(std::memory_order_acquire) != old) return;
      __builtin_ia32_pause();
    }
  } while (Clock::now() < end);
  value.wait(old, std::memory_order_acquire);
}

bool is_open(std::uint32_t epoch) { return (epoch & 1) != 0; }

class InsideBody {
 public:
  InsideBody() : before_(inside_body) { inside_body = true; }
  ~InsideBody() { inside_body = before_; }
  InsideBody(const InsideBody&) = delete;
  InsideBody& operator=(const InsideBody&) = delete;

 private:
  bool before_;
};

void run_inline(std::int64_t count, std::int64_t grain, const ThreadPool::Body& body) {
  const InsideBody inside;
  for (std::int64_t begin = 0; begin < count; begin += grain) {
    body(begin, std::min(count - begin, grain) + begin, 0);
  }
}

}  // namespace

ThreadPool& ThreadPool::instance() {
  ThreadPool* pool = current_pool.load(std::memory_order_acquire);
  if (pool == nullptr) {
    auto* made = new ThreadPool();
    // No lock here: a lock could be held at a fork by a thread that the child does not have.
    if (current_pool.compare_exchange_strong(pool, made, std::memory_order_acq_rel)) return *made;
    delete made;
  }
  return *pool;
}

void ThreadPool::set_num_threads(int num_threads) {
  wanted_num_threads.store(std::max(num_threads, 0), std::memory_order_relaxed);
}

int ThreadPool::num_threads() const {
  const int wanted = wanted_num_threads.load(std::memory_order_relaxed);
  if (wanted > 0) return wanted;
  // No static local: its guard could be held at a fork by a thread that the child does not have.
  static std::atomic<int> by_default{0};
  int known = by_default.load(std::memory_order_relaxed);
  if (known == 0) by_default.store(known = default_num_threads(), std::memory_order_relaxed);
  return known;
}

ThreadPool::~ThreadPool() { resize(1); }

void ThreadPool::resize(int num_threads) {
  const auto num_wanted = static_cast<std::size_t>(num_threads - 1);
  const bool shrinks = num_threads < size_;
  size_ = num_threads;
  if (shrinks) {
    epoch_.fetch_add(2);  // wakes the sleepers; stays closed
    epoch_.notify_all();
    while (threads_.size() > num_wanted) threads_.pop_back();
  }
  if (threads_.size() >= num_wanted || Clock::now() < retry_at_) return;
  // Fewer threads than asked for is slower, never wrong: the system's limit is no error here.
  try {
    threads_.reserve(num_wanted);
    while (threads_.size() < num_wanted) {
      const int worker = static_cast<int>(threads_.size()) + 1;
      threads_.emplace_back(k_stack_bytes, [this, worker] { worker_loop(worker); });
    }
  } catch (const std::exception& error) {
    // Not at each call: it would cost as much as a small kernel.
    constexpr auto k_pause = std::chrono::seconds(1);
    retry_at_ = Clock::now() + k_pause;
    if (!has_warned.exchange(true)) {
      log().warn("CPU kernels run on {} of {} threads: {}", threads_.size() + 1, num_threads,
                 error.what());
    }
  }
}

void ThreadPool::worker_loop(int worker) {
  pthread_setname_np(pthread_self(), "rlk");
  const InsideBody inside;
  std::uint32_t seen = epoch_.load();
  if (is_open(seen)) --seen;  // started under an open job: it may be joined
  while (worker < size_.load()) {
    wait_for_change(epoch_, seen);
    num_active_.fetch_add(1);
    seen = epoch_.load();
    if (is_open(seen) && worker < job_.num_workers) take_chunks(worker);
    // The caller waits only while the epoch is closed.
    if (num_active_.fetch_sub(1) == 1 && !is_open(epoch_.load())) num_active_.notify_all();
  }
}

void ThreadPool::take_chunks(int worker) noexcept {
  for (;;) {
    const std::int64_t begin = job_.next.fetch_add(job_.grain, std::memory_order_relaxed);
    if (begin >= job_.count || job_.failed.load(std::memory_order_relaxed)) return;
    try {
      (*job_.body)(begin, std::min(job_.count - begin, job_.grain) + begin, worker);
    } catch (...) {
      if (!job_.failed.exchange(true)) job_.error = std::current_exception();
    }
  }
}

void ThreadPool::run(std::int64_t count, std::int64_t grain, Body body, int max_workers) {
  if (count <= 0) return;
  grain = std::clamp<std::int64_t>(grain, 1, count);
  const std::int64_t num_chunks = (count - 1) / grain + 1;
  const int num_workers =
      static_cast<int>(std::min<std::int64_t>({num_threads(), max_workers, num_chunks}));
  if (num_workers <= 1 || inside_body) return run_inline(count, grain, body);

  const std::lock_guard turn(run_mutex_);
  resize(num_threads());
  job_.body = &body;
  job_.count = count;
  job_.grain = grain;
  job_.num_workers = num_workers;
  job_.next.store(0, std::memory_order_relaxed);
  job_.failed.store(false, std::memory_order_relaxed);
  job_.error = nullptr;

  epoch_.fetch_add(1);
  epoch_.notify_all();
  {
    const InsideBody inside;
    take_chunks(0);
  }
  epoch_.fetch_add(1);
  for (std::uint32_t active; (active = num_active_.load()) != 0;) {
    wait_for_change(num_active_, active);
  }
  if (job_.error) std::rethrow_exception(std::exchange(job_.error, nullptr));
}

}  // namespace rlk::runtime
