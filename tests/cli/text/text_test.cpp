// SPDX-License-Identifier: Apache-2.0
#include "cli/text/text.hpp"

#include "runtime/error.hpp"
#include "tests/support/what.hpp"

#include <gtest/gtest.h>

namespace rlk::cli {
namespace {

TEST(Text, Bytes) {
  EXPECT_EQ(bytes_text(0), "0 B");
  EXPECT_EQ(bytes_text(1023), "1023 B");
  EXPECT_EQ(bytes_text(1024), "1.0 KiB");
  EXPECT_EQ(bytes_text(1536), "1.5 KiB");
  EXPECT_EQ(bytes_text((1 << 20) - 1), "1.0 MiB");
  EXPECT_EQ(bytes_text(std::uint64_t{3} << 40), "3.0 TiB");
  EXPECT_EQ(bytes_text(std::uint64_t{5000} << 40), "5000.0 TiB");
}

TEST(Text, Age) {
  EXPECT_EQ(age_text(-5), "0s");
  EXPECT_EQ(age_text(59), "59s");
  EXPECT_EQ(age_text(60), "1m");
  EXPECT_EQ(age_text(3600), "1h");
  EXPECT_EQ(age_text(47 * 3600), "47h");
  EXPECT_EQ(age_text(48 * 3600), "2d");
}

TEST(Text, Milliseconds) {
  EXPECT_EQ(milliseconds_text(0.42), "0.4 ms");
  EXPECT_EQ(milliseconds_text(187.4), "187 ms");
  EXPECT_EQ(milliseconds_text(2345), "2.3 s");
}

TEST(Text, Time) {
  EXPECT_EQ(time_text(0), "1970-01-01 00:00:00 UTC");
  EXPECT_EQ(time_text(1738324800), "2025-01-31 12:00:00 UTC");
}

TEST(Text, Entries) {
  EXPECT_EQ(entries_text(0), "0 entries");
  EXPECT_EQ(entries_text(1), "1 entry");
  EXPECT_EQ(entries_text(2), "2 entries");
}

TEST(Text, SecondsFromAnAge) {
  EXPECT_EQ(seconds_named("0s", ""), 0);
  EXPECT_EQ(seconds_named("45s", ""), 45);
  EXPECT_EQ(seconds_named("90m", ""), 5400);
  EXPECT_EQ(seconds_named("12h", ""), 43200);
  EXPECT_EQ(seconds_named("30d", ""), 2592000);
  EXPECT_EQ(seconds_named("2w", ""), 1209600);
  for (const char* text : {"", "d", "30", "-1d", "1.5h", "1 d", "1dd", "1y", "20000000000000000w",
                           "99999999999999999999s"}) {
    EXPECT_THROW(seconds_named(text, "--older-than"), InvalidArgument) << text;
  }
  EXPECT_EQ(test::what<InvalidArgument>([] { seconds_named("3", "--older-than"); }),
            "--older-than: expected an age such as 45s, 90m, 12h, 30d or 2w, got \"3\"");
}

TEST(Text, WidthCountsCodePoints) {
  EXPECT_EQ(width(""), 0u);
  EXPECT_EQ(width("n\xc3\xa4h"), 3u);
}

TEST(Text, ColourOnlyWhereEnabled) {
  EXPECT_EQ(painted("x", Colour::red, false), "x");
  EXPECT_EQ(painted("x", Colour::none, true), "x");
  EXPECT_EQ(painted("x", Colour::red, true), "\x1b[31mx\x1b[0m");
}

}  // namespace
}  // namespace rlk::cli
