// SPDX-License-Identifier: Apache-2.0
#include "runtime/log.hpp"

#include "tests/support/captured_log.hpp"
#include "tests/support/child_processes.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <new>
#include <thread>

namespace rlk {
struct NoMemory {};
}  // namespace rlk

template <>
struct fmt::formatter<rlk::NoMemory> : fmt::formatter<int> {
  fmt::format_context::iterator format(rlk::NoMemory, fmt::format_context&) const {
    throw std::bad_alloc();
  }
};

namespace rlk {
namespace {

class LogTest : public ::testing::Test {
 protected:
  ~LogTest() override { set_log_level(LogLevel::warn); }
  test::CapturedLog log_;
};

TEST_F(LogTest, SaysWhatItsLevelAdmits) {
  log().warn("{} of {:.1f}", 1, 2.5);
  log().info("unsaid");
  set_log_level(LogLevel::info);
  log().info("said");
  log().debug("unsaid");
  log().log(LogLevel::warn, "{}", "too");
  EXPECT_EQ(log_.text(), "warning: 1 of 2.5\ninfo: said\nwarning: too\n");
}

TEST_F(LogTest, OffSaysNothing) {
  set_log_level(LogLevel::off);
  log().warn("unsaid");
  EXPECT_EQ(log_.text(), "");
}

TEST_F(LogTest, WhatCannotBeFormattedIsDropped) {
  log().warn("{}", NoMemory{});
  EXPECT_EQ(log_.text(), "");
}

TEST_F(LogTest, TheStreamBeforeComesBack) {
  {
    test::CapturedLog inner;
    log().warn("inner");
    EXPECT_EQ(inner.text(), "warning: inner\n");
  }
  log().warn("outer");
  EXPECT_EQ(log_.text(), "warning: outer\n");
}

TEST(StderrTest, NamesTheLogger) {
  ::testing::internal::CaptureStderr();
  log().warn("a");
  EXPECT_EQ(::testing::internal::GetCapturedStderr(), "rlk: warning: a\n");
}

TEST(StderrTest, AChildMayLogWhateverTheParentsThreadsDid) {
  const pid_t parent = test::start_child([] {
    ::dup2(::open("/dev/null", O_WRONLY), STDERR_FILENO);
    std::atomic<bool> is_done = false;
    std::jthread talker([&] {
      while (!is_done) log().warn("a line");
    });
    bool all_pass = true;
    for (int i = 0; i < 100; ++i) {
      const pid_t child = test::start_child([] {
        ::alarm(20);
        log().warn("a child's");
        return true;
      });
      all_pass = all_pass && test::wait_for_child(child) == "passed";
    }
    is_done = true;
    return all_pass;
  });
  EXPECT_EQ(test::wait_for_child(parent), "passed");
}

}  // namespace
}  // namespace rlk
