// SPDX-License-Identifier: Apache-2.0
// Lines of usage: written, parsed, summed, and cut to a size.
#include "cache/usage.hpp"

#include <gtest/gtest.h>

#include <random>

namespace rlk::cache {
namespace {

using All = std::vector<Usage>;

const std::string k_kernel = "toy.fwd[x=bf16 V=10]@sm_90a";

TEST(Usage, ALineIsReadAsItWasWritten) {
  for (const auto event :
       {UsageEvent::hit, UsageEvent::compiled, UsageEvent::failed, UsageEvent::fallback}) {
    const Usage usage{event, k_kernel, 3, 187, 1764313411};
    EXPECT_EQ(usage_line(usage),
              "1 " + std::string(name(event)) + " 3 187 1764313411 " + k_kernel + '\n');
    EXPECT_EQ(sum_usage(usage_line(usage)), All{usage});
  }
}

TEST(Usage, LinesOfOneKernelAndEventAreSummed) {
  const auto line = [](UsageEvent event, const std::string& name, std::uint64_t count,
                       std::uint64_t ms, std::int64_t time_s) {
    return usage_line({event, name, count, ms, time_s});
  };
  const std::string text =
      line(UsageEvent::hit, "b", 1, 0, 100) + line(UsageEvent::compiled, "a", 1, 20, 90) +
      line(UsageEvent::compiled, "a", 4, 30, 70) + line(UsageEvent::hit, "a", 1, 0, 80);
  const All sums = {{UsageEvent::hit, "a", 1, 0, 80},
                    {UsageEvent::compiled, "a", 5, 50, 90},
                    {UsageEvent::hit, "b", 1, 0, 100}};
  EXPECT_EQ(sum_usage(text), sums);
  EXPECT_EQ(sum_usage(usage_text(sums, 1000)), sums);
}

TEST(Usage, MalformedLinesAreLeftOut) {
  for (const char* line :
       {"", "1", "1 hit", "1 hit 1 0 5", "1 hit 1 0 5 ", "2 hit 1 0 5 toy", "1 miss 1 0 5 toy",
        "1 hit -1 0 5 toy", "1 hit 1 x 5 toy", "1 hit 1 0 -5 toy", "1 hit  1 0 5 toy",
        "1 hit 1.5 0 5 toy", "1 hit 99999999999999999999 0 5 toy", "1 hit 1 0 5 t\toy",
        " 1 hit 1 0 5 toy", "1 hit 1 0 5 1 hit\x1b[2J"}) {
    EXPECT_TRUE(sum_usage(std::string(line) + '\n').empty()) << line;
    EXPECT_EQ(sum_usage(std::string(line) + "\n1 hit 1 0 5 toy\n").size(), 1u) << line;
  }
  EXPECT_TRUE(sum_usage("1 hit 1 0 5 to").empty()) << "it is being written";
}

TEST(Usage, ANameThatNoLineCanHoldGivesNone) {
  for (const std::string& name : {std::string(), std::string("a\nb"), std::string(1025, 'x')}) {
    EXPECT_EQ(usage_line({UsageEvent::hit, name}), "");
  }
  EXPECT_NE(usage_line({UsageEvent::hit, std::string(1024, 'x')}), "");
}

TEST(Usage, AnyBytesAreSafe) {
  std::mt19937 random(7);
  for (int i = 0; i < 2000; ++i) {
    std::string text = "1 hit 1 0 5 toy\n1 compiled 1 20 5 toy\n";
    for (int j = 0; j < 5; ++j) text[random() % text.size()] = static_cast<char>(random());
    EXPECT_LE(sum_usage(text).size(), 4u);
  }
}

TEST(Usage, WhatDoesNotFitIsTheLongestUnused) {
  All sums;
  for (int i = 0; i < 10; ++i) {
    sums.push_back({UsageEvent::hit, "toy" + std::to_string(i), 1, 0, 100 + (i * 7) % 10});
  }
  const std::size_t line_bytes = usage_line(sums[0]).size();
  const All kept = sum_usage(usage_text(sums, 3 * line_bytes + 1));
  ASSERT_EQ(kept.size(), 3u);
  for (const Usage& usage : kept) EXPECT_GE(usage.time_s, 107);
}

}  // namespace
}  // namespace rlk::cache
