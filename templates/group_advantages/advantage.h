// SPDX-License-Identifier: Apache-2.0
// The advantage of one reward, from its group's statistics: both backends.
#pragma once

#include "group_advantages/args.h"

namespace rlk {

RLK_INLINE long long normalize(const GroupAdvantagesArgs& a) {
  return kNormalize >= 0 ? kNormalize : a.normalize;
}

struct Group {
  long long first, last;
};

// Boundaries on a device may be wrong: a group is cut to what exists.
RLK_INLINE Group group(const GroupAdvantagesArgs& a, long long i) {
  long long first = a.starts ? a.starts[i] : i * a.group_size;
  long long last = a.starts ? a.starts[i + 1] : first + a.group_size;
  first = first < 0 ? 0 : first;
  last = last > a.num_rewards ? a.num_rewards : last;
  return {first, last};
}

// The advantage of a reward that has no others to compare with.
RLK_INLINE float advantage_alone(const GroupAdvantagesArgs& a, double reward) {
  if (a.group_of_one == kReward) return static_cast<float>(reward);
  const bool is_zero = a.group_of_one == kZero && reward == reward;
  return is_zero ? 0.0f : __builtin_bit_cast(float, 0x7fc00000u);
}

// A power of two that takes rewards to where sums of their squares neither overflow nor vanish.
RLK_INLINE double scale_of(double largest) {
  return largest > 0x1p480 ? 0x1p-600 : largest < 0x1p-480 ? 0x1p600 : 1.0;
}

// What a group of rewards that are not all equal has in common; all but `count` times `scale`.
struct GroupStatistics {
  double scale, count, mean, squares;
};

RLK_INLINE double with_eps(const GroupAdvantagesArgs& a, double std, double scale) {
  const double eps = a.eps * scale;
  const bool is_max = (kEpsIsMax >= 0 ? kEpsIsMax : a.eps_is_max) != 0;
  if (!is_max) return std + eps;
  return std < eps ? eps : std;
}

// What the distances from the mean are divided by.
RLK_INLINE double denominator(const GroupAdvantagesArgs& a, const GroupStatistics& s) {
  if (normalize(a) == kCenter) return s.scale;
  if (normalize(a) == kRloo) return s.scale * ((s.count - 1.0) / s.count);
  return with_eps(a, square_root(s.squares / (s.count - static_cast<double>(a.ddof))), s.scale);
}

// Of a group without one of its rewards. Divisions are made once a group: those in a loop spill.
struct Others {
  double mean_share, std_share;  // 1 / their number, 1 / (that - ddof)
  double farther;                // x - mean of the others = (x - mean) * n / (n - 1)
};

RLK_INLINE Others others_of(const GroupAdvantagesArgs& a, const GroupStatistics& s) {
  const double others = s.count - 1.0, share = 1.0 / others;
  return {share, 1.0 / (others - static_cast<double>(a.ddof)), s.count * share};
}

// Squares of all but reward `at` about their mean. Taken from one of them first: equal ones give 0.
template <class Reward>
RLK_INLINE double squares_of_others(const Group& g, const Others& o, long long at, Reward reward) {
  const double one = reward(g.first == at ? g.first + 1 : g.first);
  double sum = 0.0, squares = 0.0;
  for (long long j = g.first; j < g.last; ++j) sum += j == at ? 0.0 : reward(j) - one;
  const double mean = sum * o.mean_share;
  for (long long j = g.first; j < g.last; ++j) {
    const double x = j == at ? 0.0 : reward(j) - one - mean;
    squares += x * x;
  }
  return squares;
}

// A reward against the mean of the others, over their standard deviation where that is above 0.
template <class Reward>
RLK_INLINE double against_others(const GroupAdvantagesArgs& a, const GroupStatistics& s,
                                 const Others& o, const Group& g, long long at, Reward reward) {
  const double from_mean = reward(at) - s.mean, from_others = from_mean * o.farther;
  double squares = s.squares - from_mean * from_others;
  // Little is left of an outlier's group without it. Two rewards at most have such a share.
  if (squares < 0.5 * s.squares) squares = squares_of_others(g, o, at, reward);
  const double std = square_root(squares * o.std_share);
  return from_others / (std > 0.0 ? with_eps(a, std, s.scale) : s.scale);
}

}  // namespace rlk
