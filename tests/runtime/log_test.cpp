// SPDX-License-Identifier: Apache-2.0
#include "runtime/log.hpp"

#include "tests/support/captured_log.hpp"

#include <gtest/gtest.h>

#include <new>

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

}  // namespace
}  // namespace rlk
