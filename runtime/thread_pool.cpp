// SPDX-License-Identifier: Apache-2.0
// A worker joins a job by raising num_active_ before it reads epoch_; the caller closes the epoch
// before it reads num_active_. All four are sequentially consistent, so either the worker sees the
// job closed or the caller waits for it. A worker that wakes too late is never waited for.
#include "runtime/thread_pool.hpp"

#include "runtime/cpu_count.hpp"

#include <pthread.h>

#include <algorithm>
#include <chrono>
#include <system_error>
#include <utility>

namespace rlk::runtime {
namespace {

std::atomic<ThreadPool*> current_pool{nullptr};
std::atomic<int> wanted_num_threads{0};
thread_local bool inside_body = false;

// Registered when the library is loaded: a handler added at first use could itself be caught half
// done by a fork. The child's copy of the old pool is left alone, its threads do not exist.
[[maybe_unused]] const int fork_handler = pthread_atfork(
    nullptr, nullptr, [] { current_pool.store(nullptr, std::memory_order_relaxed); });

// Returns when value differs from old. Steps of one call follow each other within microseconds, so
// polling for a while first saves the sleep; after that the thread costs nothing.
void wait_for_change(const std::atomic<std::uint32_t>& value, std::uint32_t old) {
  using Clock = std::chrono::steady_clock;
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
  if (num_threads == size_) return;
  size_ = num_threads;
  for (auto& thread : threads_) thread.request_stop();
  epoch_.fetch_add(2);  // wakes the sleepers; stays closed
  epoch_.notify_all();
  threads_.clear();
  threads_.reserve(static_cast<std::size_t>(num_threads - 1));
  // Fewer threads than asked for is slower, never wrong: the system's limit is no error here.
  try {
    for (int worker = 1; worker < num_threads; ++worker) {
      threads_.emplace_back(
          [this, worker](const std::stop_token& stop) { worker_loop(stop, worker); });
    }
  } catch (const std::system_error&) {
  }
}

void ThreadPool::worker_loop(const std::stop_token& stop, int worker) {
  pthread_setname_np(pthread_self(), "rlk");
  const InsideBody inside;
  std::uint32_t seen = epoch_.load();
  if (is_open(seen)) --seen;  // started under an open job: it may be joined
  while (!stop.stop_requested()) {
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
