// SPDX-License-Identifier: Apache-2.0
// How a vocabulary is cut, which fixes the order in which a row's terms are added: eight segments
// of like size, each into leaves that begin at its first column. The leaves of a segment are added
// as a balanced tree, neighbours first, and so are the segments. A rank that has some neighbouring
// segments of a vocabulary cuts its columns as they are cut there. Included by kernels of both
// backends and their host code, so this file includes nothing.
#pragma once

namespace rlk {

constexpr int kLogpSegments = 8;
constexpr long long kLogpMostColumns = 0x7fffffff;  // of a vocabulary

// Columns of a segment.
constexpr int logp_segment(long long vocab) {
  return static_cast<int>((vocab + kLogpSegments - 1) / kLogpSegments);
}

// Columns [begin, begin + cols); none where cols is 0.
struct LogpLeaf {
  int begin, cols;
};

// Leaves of kWidth columns; the last one of a segment is shorter where they do not divide it. All
// segments have the same number of leaves, so the last segment may have an empty one.
template <int kWidth>
struct LogpLeaves {
  long long vocab;   // at most kLogpMostColumns
  int segment_cols;  // logp_segment(vocab) where it is a whole vocabulary

  constexpr int segment() const { return segment_cols; }
  constexpr int of_segment() const { return (segment() + kWidth - 1) / kWidth; }
  // Of the segments that have a column.
  constexpr int count() const {
    if (vocab == 0) return 0;
    const unsigned size = static_cast<unsigned>(segment());
    return static_cast<int>((static_cast<unsigned>(vocab) + size - 1) / size) * of_segment();
  }
  constexpr LogpLeaf at(long long leaf) const {
    const unsigned index = static_cast<unsigned>(leaf) / static_cast<unsigned>(of_segment());
    const unsigned first = index * static_cast<unsigned>(segment());
    const unsigned within =
        static_cast<unsigned>(leaf) - index * static_cast<unsigned>(of_segment());
    const unsigned last = first + static_cast<unsigned>(segment());
    const unsigned end = last < static_cast<unsigned>(vocab) ? last : static_cast<unsigned>(vocab);
    const unsigned begin = first + within * kWidth < end ? first + within * kWidth : end;
    return {static_cast<int>(begin), static_cast<int>(end - begin < kWidth ? end - begin : kWidth)};
  }
};

// Of a whole vocabulary.
template <int kWidth>
constexpr LogpLeaves<kWidth> logp_leaves(long long vocab) {
  return {vocab, logp_segment(vocab)};
}

}  // namespace rlk
