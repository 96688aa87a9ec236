// SPDX-License-Identifier: Apache-2.0
#include "templates/common/logp/leaves.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace rlk::test {
namespace {

template <int kWidth>
void expect_sound(long long vocab) {
  SCOPED_TRACE(testing::Message() << vocab << " by " << kWidth);
  const auto leaves = logp_leaves<kWidth>(vocab);
  const long long segment = (vocab + 7) / 8;
  ASSERT_EQ(leaves.segment(), segment);
  ASSERT_EQ(leaves.of_segment(), (segment + kWidth - 1) / kWidth);
  ASSERT_EQ(leaves.count() % leaves.of_segment(), 0);
  ASSERT_LE(leaves.count(), 8 * leaves.of_segment());
  long long next = 0;
  for (long long i = 0; i < leaves.count(); ++i) {
    const LogpLeaf leaf = leaves.at(i);
    const long long of_segment = i % leaves.of_segment();
    ASSERT_LE(leaf.cols, kWidth);
    if (leaf.cols == 0) continue;  // at the end alone
    ASSERT_EQ(leaf.begin, i / leaves.of_segment() * segment + of_segment * kWidth);
    ASSERT_EQ(leaf.begin, next) << "every column has one leaf";
    ASSERT_LE(leaf.begin % segment + leaf.cols, segment) << "no leaf crosses segments";
    next += leaf.cols;
  }
  EXPECT_EQ(next, vocab);
}

TEST(LeavesTest, EveryColumnHasOneLeafOfItsSegment) {
  for (long long vocab = 1; vocab <= 40; ++vocab) {
    expect_sound<128>(vocab);
    expect_sound<192>(vocab);
  }
  for (const long long vocab : {1535, 1536, 1537, 50257, 128256, 151936, 262144, 1 << 20}) {
    expect_sound<128>(vocab);
    expect_sound<192>(vocab);
  }
}

TEST(LeavesTest, TheLastSegmentMayLackALeaf) {
  const auto leaves = logp_leaves<192>(8 * 193 - 5);  // it has 188 columns, the others 193
  EXPECT_EQ(leaves.count(), 16);
  EXPECT_EQ(leaves.at(13).cols, 1);
  EXPECT_EQ(leaves.at(14).cols, 188);
  EXPECT_EQ(leaves.at(15).cols, 0);
}

TEST(LeavesTest, SegmentsWithoutColumnsHaveNoLeaf) {
  EXPECT_EQ(logp_leaves<192>(1).count(), 1);
  EXPECT_EQ(logp_leaves<192>(9).count(), 5) << "segments of 2";
  EXPECT_EQ(logp_leaves<192>(0).count(), 0);
}

TEST(LeavesTest, ARanksLeavesAreThoseOfTheWhole) {
  for (const long long vocab : {50257, 128256, 3001, 50}) {
    const auto whole = logp_leaves<192>(vocab);
    for (const int ranks : {1, 2, 4, 8}) {
      const long long cols = 8 / ranks * whole.segment();
      int next = 0;
      for (long long begin = 0; begin < vocab; begin += cols) {
        const LogpLeaves<192> own{std::min(cols, vocab - begin), whole.segment()};
        for (int i = 0; i < own.count(); ++i, ++next) {
          ASSERT_EQ(own.at(i).begin + begin, whole.at(next).begin) << vocab << " by " << ranks;
          ASSERT_EQ(own.at(i).cols, whole.at(next).cols) << vocab << " by " << ranks;
        }
      }
      EXPECT_EQ(next, whole.count());
    }
  }
}

}  // namespace
}  // namespace rlk::test
