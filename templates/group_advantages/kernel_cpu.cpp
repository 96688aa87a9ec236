// SPDX-License-Identifier: Apache-2.0
// group_advantages on the CPU: rewards against the mean of their group.
//
//   advantage = (reward - mean) / denominator, in float64, two passes; 0 in a group of equal
//   rewards std     sqrt(sum (reward - mean)^2 / (n - ddof)) + eps, or max(that, eps) center  1
//   rloo    (n - 1) / n: the mean is of the others
//
// Constants, initialized by the JIT; args.h has their values, -1 is run-time:
//   kNormalize, kEpsIsMax
//
//   rlk_group_advantages_fwd_main   item: a group -> advantages
//
// Reads 8 bytes a reward three times, writes 4.
#include "common/cpu/vector.h"

extern const long long kNormalize;
extern const long long kEpsIsMax;

namespace rlk {
RLK_INLINE double square_root(double x) { return __builtin_sqrt(x); }
}  // namespace rlk

#include "advantage.h"

namespace rlk {

extern "C" void rlk_group_advantages_fwd_main(const GroupAdvantagesArgs* args, long long begin,
                                              long long end) {
  const GroupAdvantagesArgs& a = *args;
  const auto* const rewards = static_cast<const double*>(a.rewards);
#pragma clang loop unroll(disable)
  for (long long i = begin; i < end; ++i) {
    const auto [first, last] = group(a, i);
    bool equal = true;
    double sum = 0.0;
#pragma clang loop unroll(disable)
    for (long long j = first; j < last; ++j) {
      equal = equal && rewards[j] == rewards[first];
      sum += rewards[j];
    }
    const double count = static_cast<double>(last - first), mean = sum / count;
    double squares = 0.0;
    if (normalize(a) == kStd) {
#pragma clang loop unroll(disable)
      for (long long j = first; j < last; ++j) {
        squares += (rewards[j] - mean) * (rewards[j] - mean);
      }
    }
    const double below = denominator(a, count, squares);
#pragma clang loop unroll(disable)
    for (long long j = first; j < last; ++j) {
      a.advantages[j] = equal ? 0.0f : static_cast<float>((rewards[j] - mean) / below);
    }
  }
}

}  // namespace rlk
