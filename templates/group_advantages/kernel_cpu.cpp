// SPDX-License-Identifier: Apache-2.0
// group_advantages on the CPU: rewards against the mean of their group.
//
//   advantage = (reward - mean) / denominator, in float64, two passes; 0 where rewards are equal
//
//   std      sqrt(sum (reward - mean)^2 / (n - ddof)) + eps, or max(that, eps)
//   center   1
//   rloo     (n - 1) / n: the mean is of the others
//   loo_std  mean and std are of the others; 1 where their std is 0
//
// Constants, initialized by the JIT; args.h has their values, -1 is run-time:
//   kNormalize, kEpsIsMax
//
//   rlk_group_advantages_fwd_main   item: a group -> advantages
//
// Reads 8 bytes a reward four times, writes 4.
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
    const Group g = group(a, i);
    if (g.last - g.first == 1) {
      a.advantages[g.first] = advantage_alone(a, rewards[g.first]);
      continue;
    }
    bool equal = true;
    double largest = 0.0;
#pragma clang loop unroll(disable)
    for (long long j = g.first; j < g.last; ++j) {
      const double size = __builtin_fabs(rewards[j]);
      equal = equal && rewards[j] == rewards[g.first];
      largest = size > largest ? size : largest;
    }
    const double scale = scale_of(largest);
    const auto reward = [&](long long j) { return rewards[j] * scale; };
    double sum = 0.0;
#pragma clang loop unroll(disable)
    for (long long j = g.first; j < g.last; ++j) sum += reward(j);
    const double count = static_cast<double>(g.last - g.first);
    GroupStatistics s{scale, count, sum / count, 0.0};
    if (normalize(a) == kStd || normalize(a) == kLooStd) {
#pragma clang loop unroll(disable)
      for (long long j = g.first; j < g.last; ++j) {
        s.squares += (reward(j) - s.mean) * (reward(j) - s.mean);
      }
    }
    if (normalize(a) == kLooStd) {
      const Others others = others_of(a, s);
#pragma clang loop unroll(disable)
      for (long long j = g.first; j < g.last; ++j) {
        const double x = against_others(a, s, others, g, j, reward);
        a.advantages[j] = equal ? 0.0f : static_cast<float>(x);
      }
      continue;
    }
    const double below = denominator(a, s);
#pragma clang loop unroll(disable)
    for (long long j = g.first; j < g.last; ++j) {
      a.advantages[j] = equal ? 0.0f : static_cast<float>((reward(j) - s.mean) / below);
    }
  }
}

}  // namespace rlk
