// SPDX-License-Identifier: Apache-2.0
// Jobs in processes: each once, results back, deaths noticed, stopped when told.
#include "jit/warm/fork_pool.hpp"

#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <map>
#include <set>
#include <thread>

namespace rlk::jit {
namespace {

using Told = std::map<std::size_t, std::optional<std::string>>;

constexpr auto never = [] { return false; };

TEST(ForkPool, EachJobOnceInOtherProcesses) {
  for (const int num_processes : {1, 3, 50}) {
    ForkPool pool;
    Told told;
    pool.run(
        20, num_processes,
        [](std::size_t job) { return std::to_string(job) + " of " + std::to_string(getpid()); },
        [&](std::size_t job, const auto& text) { EXPECT_TRUE(told.emplace(job, text).second); },
        never);
    ASSERT_EQ(told.size(), 20u);
    for (const auto& [job, text] : told) {
      EXPECT_TRUE(text->starts_with(std::to_string(job) + " of "));
      EXPECT_FALSE(text->ends_with(' ' + std::to_string(getpid())));
    }
  }
}

TEST(ForkPool, NoJobs) {
  ForkPool pool;
  pool.run(
      0, 2, [](std::size_t) { return std::string(); }, [](std::size_t, const auto&) { FAIL(); },
      never);
}

TEST(ForkPool, LongAndOddTextsArriveWhole) {
  ForkPool pool;
  Told told;
  pool.run(
      8, 4,
      [](std::size_t job) { return std::string(3000, static_cast<char>('a' + job)) + "\n end"; },
      [&](std::size_t job, const auto& text) { told[job] = text; }, never);
  for (const auto& [job, text] : told) {
    EXPECT_EQ(*text, std::string(3000, static_cast<char>('a' + job)) + "  end");
  }
  EXPECT_EQ(told.size(), 8u);
  pool.run(
      1, 1, [](std::size_t) { return std::string(100000, 'x'); },
      [&](std::size_t, const auto& text) { EXPECT_GT(text->size(), 3000u); }, never);
  pool.run(
      1, 1, [](std::size_t) { return std::string(); },
      [&](std::size_t, const auto& text) { EXPECT_EQ(text, ""); }, never);
}

TEST(ForkPool, AJobThatDiesTakesNoOtherAlong) {
  ForkPool pool;
  Told told;
  pool.run(
      10, 3,
      [](std::size_t job) {
        if (job == 2) ::raise(SIGKILL);
        return std::string("done");
      },
      [&](std::size_t job, const auto& text) { told[job] = text; }, never);
  ASSERT_EQ(told.size(), 10u);
  for (const auto& [job, text] : told) EXPECT_EQ(text.has_value(), job != 2) << job;
}

TEST(ForkPool, StopsWhenTold) {
  ForkPool pool;
  Told told;
  bool stop = false;
  pool.run(
      100, 2,
      [&](std::size_t) {
        while (!pool.is_stopped()) std::this_thread::sleep_for(std::chrono::milliseconds(5));
        return std::string("stopped");
      },
      [&](std::size_t job, const auto& text) { told[job] = text; },
      [&] { return std::exchange(stop, true); });
  EXPECT_GE(told.size(), 1u);
  EXPECT_LE(told.size(), 2u);
  for (const auto& [job, text] : told) EXPECT_EQ(text, "stopped");
}

}  // namespace
}  // namespace rlk::jit
