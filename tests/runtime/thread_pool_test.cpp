// SPDX-License-Identifier: Apache-2.0
// Every item once, whatever the threads; turns, nesting, exceptions, forks.
#include "runtime/thread_pool.hpp"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <set>
#include <stdexcept>
#include <thread>
#include <vector>

// A child that starts threads is what the fork tests are about.
extern "C" const char* __tsan_default_options();
extern "C" const char* __tsan_default_options() { return "die_after_fork=0"; }

namespace rlk::runtime {
namespace {

class ThreadPoolTest : public testing::Test {
 protected:
  ~ThreadPoolTest() override { ThreadPool::set_num_threads(0); }
};

std::vector<int> visits(std::int64_t count, std::int64_t grain) {
  std::vector<int> seen(static_cast<std::size_t>(count));
  ThreadPool::instance().run(count, grain, [&](std::int64_t begin, std::int64_t end, int) {
    for (auto i = begin; i < end; ++i) ++seen[static_cast<std::size_t>(i)];
  });
  return seen;
}

TEST_F(ThreadPoolTest, VisitsEveryItemOnce) {
  for (int num_threads : {1, 2, 3, 8}) {
    ThreadPool::set_num_threads(num_threads);
    for (std::int64_t count : {0, 1, 2, 7, 64, 1000}) {
      for (std::int64_t grain : {-1, 0, 1, 3, 64, 5000}) {
        EXPECT_EQ(visits(count, grain), std::vector<int>(static_cast<std::size_t>(count), 1))
            << num_threads << " threads, " << count << " items, grain " << grain;
      }
    }
  }
}

TEST_F(ThreadPoolTest, ChunksAreOfGrainItems) {
  ThreadPool::set_num_threads(3);
  std::mutex mutex;
  std::set<std::pair<std::int64_t, std::int64_t>> chunks;
  ThreadPool::instance().run(10, 4, [&](std::int64_t begin, std::int64_t end, int) {
    const std::lock_guard lock(mutex);
    chunks.emplace(begin, end);
  });
  EXPECT_EQ(chunks, (std::set<std::pair<std::int64_t, std::int64_t>>{{0, 4}, {4, 8}, {8, 10}}));
}

TEST_F(ThreadPoolTest, CountNearTheLargestNumberDoesNotWrap) {
  ThreadPool::set_num_threads(2);
  const auto count = std::numeric_limits<std::int64_t>::max() / 2;
  std::atomic<std::int64_t> items{0};
  ThreadPool::instance().run(
      count, count / 3, [&](std::int64_t begin, std::int64_t end, int) { items += end - begin; });
  EXPECT_EQ(items, count);
}

TEST_F(ThreadPoolTest, WorkersRunTogetherUnderOwnNumbers) {
  ThreadPool::set_num_threads(3);
  std::atomic<int> arrived{0};
  std::vector<std::atomic<int>> by_worker(3);
  // Each chunk waits for the two others: only three threads can finish this.
  ThreadPool::instance().run(3, 1, [&](std::int64_t, std::int64_t, int worker) {
    ++by_worker[static_cast<std::size_t>(worker)];
    ++arrived;
    while (arrived < 3) std::this_thread::yield();
  });
  for (const auto& visited : by_worker) EXPECT_EQ(visited, 1);
}

TEST_F(ThreadPoolTest, WorkerNumbersStayBelowMaxWorkers) {
  ThreadPool::set_num_threads(8);
  std::atomic<int> highest{0};
  for (int repeat = 0; repeat < 200; ++repeat) {
    ThreadPool::instance().run(
        64, 1,
        [&](std::int64_t, std::int64_t, int worker) {
          int before = highest;
          while (before < worker && !highest.compare_exchange_weak(before, worker)) {
          }
        },
        3);
  }
  EXPECT_LT(highest, 3);
}

TEST_F(ThreadPoolTest, NestedRunIsInline) {
  ThreadPool::set_num_threads(4);
  std::atomic<int> items{0};
  std::atomic<bool> moved{false};
  ThreadPool::instance().run(8, 1, [&](std::int64_t, std::int64_t, int) {
    const auto outer = std::this_thread::get_id();
    ThreadPool::instance().run(10, 3, [&](std::int64_t begin, std::int64_t end, int worker) {
      if (std::this_thread::get_id() != outer || worker != 0) moved = true;
      items += static_cast<int>(end - begin);
    });
  });
  EXPECT_EQ(items, 80);
  EXPECT_FALSE(moved);
}

TEST_F(ThreadPoolTest, ExceptionReachesTheCallerAndThePoolGoesOn) {
  for (int num_threads : {1, 4}) {
    ThreadPool::set_num_threads(num_threads);
    for (int repeat = 0; repeat < 20; ++repeat) {
      EXPECT_THROW(ThreadPool::instance().run(100, 1,
                                              [](std::int64_t begin, std::int64_t, int) {
                                                if (begin == 37) throw std::domain_error("37");
                                              }),
                   std::domain_error);
      EXPECT_EQ(visits(100, 1), std::vector<int>(100, 1));
    }
  }
}

TEST_F(ThreadPoolTest, CallersFromSeveralThreads) {
  ThreadPool::set_num_threads(3);
  std::atomic<int> wrong{0};
  std::vector<std::jthread> callers;
  for (int caller = 0; caller < 4; ++caller) {
    callers.emplace_back([&, caller] {
      for (int repeat = 0; repeat < 300; ++repeat) {
        if (caller == 0) ThreadPool::set_num_threads(1 + repeat % 4);
        const auto count = static_cast<std::size_t>(1 + (repeat * 7 + caller) % 50);
        if (visits(static_cast<std::int64_t>(count), 1) != std::vector<int>(count, 1)) ++wrong;
      }
    });
  }
  callers.clear();
  EXPECT_EQ(wrong, 0);
}

TEST_F(ThreadPoolTest, WorkersThatSleepAreWoken) {
  ThreadPool::set_num_threads(2);
  for (int repeat = 0; repeat < 20; ++repeat) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));  // far beyond the spin
    std::atomic<int> arrived{0};
    ThreadPool::instance().run(2, 1, [&](std::int64_t, std::int64_t, int) {
      ++arrived;
      while (arrived < 2) std::this_thread::yield();
    });
  }
}

// Exit code of a child that runs the pool; an alarm ends a child that hangs.
int run_in_child() {
  const pid_t child = fork();
  if (child == 0) {
    alarm(20);
    const bool right = visits(1000, 1) == std::vector<int>(1000, 1);
    std::atomic<int> arrived{0};
    ThreadPool::instance().run(2, 1, [&](std::int64_t, std::int64_t, int) {
      ++arrived;
      while (arrived < 2) std::this_thread::yield();
    });
    _exit(right ? 0 : 1);
  }
  int status = 0;
  waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

TEST_F(ThreadPoolTest, ChildHasAPoolOfItsOwn) {
  ThreadPool::set_num_threads(2);
  visits(100, 1);
  EXPECT_EQ(run_in_child(), 0);
  EXPECT_EQ(visits(100, 1), std::vector<int>(100, 1));
}

TEST_F(ThreadPoolTest, ForkWhileAnotherThreadRunsThePool) {
  ThreadPool::set_num_threads(2);
  std::jthread busy([](const std::stop_token& stop) {
    while (!stop.stop_requested()) visits(64, 1);
  });
  for (int repeat = 0; repeat < 20; ++repeat) ASSERT_EQ(run_in_child(), 0);
}

}  // namespace
}  // namespace rlk::runtime
