// SPDX-License-Identifier: Apache-2.0
// How a vocabulary is cut, which fixes the order in which a row's terms are added: eight segments
// of like size, each into leaves that begin at its first column. The leaves of a segment are added
// as a balanced tree, neighbours first, and so are the segments. Included by kernels of both
// backends and their host code, so this file includes nothing.
#pragma once

namespace rlk {

constexpr unsigned kLogpSegments = 8;

// Columns [begin, begin + cols); none where cols is 0.
struct LogpLeaf {
  long long begin;
  int cols;
};

// Leaves of kWidth columns; the last one of a segment is shorter where they do not divide it. All
// segments have the same number of leaves, so the last segment may have an empty one.
template <int kWidth>
struct LogpLeaves {
  long long vocab;

  constexpr long long segment() const { return (vocab + kLogpSegments - 1) / kLogpSegments; }
  constexpr unsigned of_segment() const {
    return static_cast<unsigned>((segment() + kWidth - 1) / kWidth);
  }
  // Of the segments that have a column.
  constexpr long long count() const {
    return vocab == 0 ? 0 : (vocab + segment() - 1) / segment() * of_segment();
  }
  constexpr LogpLeaf at(long long leaf) const {
    const unsigned segment_index = static_cast<unsigned>(leaf) / of_segment();
    const unsigned within = static_cast<unsigned>(leaf) - segment_index * of_segment();
    const long long begin = segment_index * segment() + static_cast<long long>(within) * kWidth;
    const long long end = (segment_index + 1) * segment();
    const long long left = (end < vocab ? end : vocab) - begin;
    return {begin, static_cast<int>(left < 0 ? 0 : left < kWidth ? left : kWidth)};
  }
};

}  // namespace rlk
