// SPDX-License-Identifier: Apache-2.0
// Stacks of the size asked for, whoever asks; what a body throws reaches its caller.
#include "runtime/thread.hpp"

#include "runtime/refused.hpp"
#include "tests/support/child_processes.hpp"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <csignal>
#include <limits>
#include <stdexcept>

namespace rlk::runtime {
namespace {

// Touches as much of the stack.
[[gnu::noinline]] int use_stack(std::size_t bytes) {
  volatile char frame[1 << 14] = {};
  frame[0] = 1;
  return bytes <= sizeof(frame) ? frame[0] : frame[0] + use_stack(bytes - sizeof(frame));
}

TEST(ThreadTest, ACompileHasALargeStackWhateverItsCallerHas) {
  int depth = 0;
  {
    const Thread small(std::size_t{64} << 10, [&] {
      with_compile_stack([&] {
        const pthread_t outer = pthread_self();
        // What has one stays.
        with_compile_stack([&] { EXPECT_TRUE(pthread_equal(outer, pthread_self())); });
        depth = use_stack(std::size_t{6} << 20);
      });
    });
  }
  EXPECT_GT(depth, 300);
}

TEST(ThreadTest, WhatABodyThrowsReachesTheCaller) {
  EXPECT_THROW(with_compile_stack([] { throw std::runtime_error("no"); }), std::runtime_error);
}

TEST(ThreadTest, SignalsStayTheCallers) {
  sigset_t mask{};
  {
    const Thread thread(k_compile_stack_bytes, [&] { pthread_sigmask(0, nullptr, &mask); });
  }
  EXPECT_EQ(sigismember(&mask, SIGINT), 1);
  EXPECT_EQ(sigismember(&mask, SIGSEGV), 0);
  pthread_sigmask(0, nullptr, &mask);
  EXPECT_EQ(sigismember(&mask, SIGINT), 0);
}

TEST(ThreadTest, AStackThatCannotBeIsRefused) {
  EXPECT_THROW(Thread(std::size_t{1} << 50, [] {}), Refused);
  EXPECT_THROW(expect_memory(std::size_t{1} << 50), Refused);
  EXPECT_NO_THROW(expect_memory(std::size_t{1} << 20));
  EXPECT_NO_THROW(expect_descriptor());
}

TEST(ThreadTest, ThreadsAreGrantedOrNot) {
  EXPECT_TRUE(grants_threads(4));
  EXPECT_TRUE(grants_threads(0));
  const pid_t child = test::start_child([] {
    if (::setuid(65534) != 0) return true;  // root is refused none
    rlimit limit{};
    ::getrlimit(RLIMIT_NPROC, &limit);
    limit.rlim_cur = 1;
    ::setrlimit(RLIMIT_NPROC, &limit);
    return !grants_threads(4);
  });
  EXPECT_EQ(test::wait_for_child(child), "passed");
}

}  // namespace
}  // namespace rlk::runtime
