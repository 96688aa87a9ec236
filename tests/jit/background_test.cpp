// SPDX-License-Identifier: Apache-2.0
// Background: one time to wait for several queues.
#include "jit/background.hpp"

#include <gtest/gtest.h>

#include <chrono>
#include <thread>

namespace rlk::jit {
namespace {

using namespace std::chrono_literals;

TEST(Background, WaitsForAllQueuesNoLongerThanForOne) {
  // The first queue is done in time, the second when the time has passed, but not twice. A thread
  // that is late finds both done, so one try of several is enough.
  bool is_done = true;
  for (int attempt = 0; attempt < 5 && is_done; ++attempt) {
    Background first(1, Background::Priority::normal), second(1, Background::Priority::normal);
    ASSERT_TRUE(first.add([] { std::this_thread::sleep_for(150ms); }));
    ASSERT_TRUE(second.add([] { std::this_thread::sleep_for(300ms); }));
    is_done = wait_for({&first, &second}, 200ms);
    EXPECT_TRUE(wait_for({&first, &second}, 10s));
  }
  EXPECT_FALSE(is_done);
}

TEST(Background, NoTimeIsALook) {
  Background first(1, Background::Priority::normal), second(1, Background::Priority::normal);
  EXPECT_TRUE(wait_for({&first, &second}, 0ms));
  ASSERT_TRUE(second.add([] { std::this_thread::sleep_for(200ms); }));
  EXPECT_FALSE(wait_for({&first, &second}, 0ms));
  EXPECT_TRUE(wait_for({&first, &second}, 10s));
}

}  // namespace
}  // namespace rlk::jit
