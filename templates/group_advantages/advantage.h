// SPDX-License-Identifier: Apache-2.0
// The advantage of one reward, from its group's statistics: both backends.
#pragma once

#include "group_advantages/args.h"

namespace rlk {

RLK_INLINE long long normalize(const GroupAdvantagesArgs& a) {
  return kNormalize >= 0 ? kNormalize : a.normalize;
}

// Denominator of a group of `count` rewards that are not all equal.
RLK_INLINE double denominator(const GroupAdvantagesArgs& a, double count, double squares) {
  if (normalize(a) == kCenter) return 1.0;
  // x - mean of the others = (x - mean) * n / (n - 1).
  if (normalize(a) == kRloo) return (count - 1.0) / count;
  const double std = square_root(squares / (count - static_cast<double>(a.ddof)));
  const bool is_max = (kEpsIsMax >= 0 ? kEpsIsMax : a.eps_is_max) != 0;
  if (!is_max) return std + a.eps;
  return std < a.eps ? a.eps : std;
}

struct Group {
  long long first, last;
};

// Boundaries on a device are not checked before the launch: a wrong group is cut to what exists.
RLK_INLINE Group group(const GroupAdvantagesArgs& a, long long i) {
  long long first = a.starts ? a.starts[i] : i * a.group_size;
  long long last = a.starts ? a.starts[i + 1] : first + a.group_size;
  first = first < 0 ? 0 : first;
  last = last > a.num_rewards ? a.num_rewards : last;
  return {first, last};
}

}  // namespace rlk
