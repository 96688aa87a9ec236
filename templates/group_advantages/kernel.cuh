// SPDX-License-Identifier: Apache-2.0
// group_advantages on CUDA: rewards against the mean of their group.
//
//   advantage = (reward - mean) / denominator, in float64, two passes; 0 where rewards are equal
//
//   std      sqrt(sum (reward - mean)^2 / (n - ddof)) + eps, or max(that, eps)
//   center   1
//   rloo     (n - 1) / n: the mean is of the others
//   loo_std  mean and std are of the others; 1 where their std is 0
//
// Rendered before this text; args.h has their values, -1 is run-time:
//   kNormalize, kEpsIsMax
//
//                                   grid
//   rlk_group_advantages_fwd_main   any x 256, a warp a group -> advantages
//
// Reads each reward four times, writes 4 bytes. A lane adds every 32nd reward, then the lanes a
// tree: the order follows the group's size alone.
#include "common/cuda/device_error.cuh"
#include "common/cuda/element.cuh"
#include "common/cuda/lanes.cuh"

namespace rlk {
RLK_INLINE double square_root(double x) {
  double y;
  asm("sqrt.rn.f64 %0, %1;" : "=d"(y) : "d"(x));
  return y;
}
}  // namespace rlk

#include "group_advantages/advantage.h"

namespace rlk {

RLK_DEVICE double sum_of_lanes(double x) {
#pragma unroll
  for (int lanes = 1; lanes < 32; lanes *= 2) x = x + __shfl_xor_sync(kFullWarp, x, lanes);
  return x;
}

RLK_DEVICE double max_of_lanes(double x) {
#pragma unroll
  for (int lanes = 1; lanes < 32; lanes *= 2) {
    const double other = __shfl_xor_sync(kFullWarp, x, lanes);
    x = other > x ? other : x;
  }
  return x;
}

extern "C" __global__ void __launch_bounds__(256)
    rlk_group_advantages_fwd_main(const __grid_constant__ GroupAdvantagesArgs a) {
  const int lane = threadIdx.x % 32;
  const auto raw = [&](Int64 j) {
    if (a.type == kFloat64) return static_cast<const double*>(a.rewards)[j * a.stride];
    return static_cast<double>(read_float(a.rewards, j * a.stride, a.type));
  };
  if (a.starts) {
#pragma unroll 1
    for (Int64 i = blockIdx.x * Int64{256} + threadIdx.x; i < a.num_groups;
         i += gridDim.x * Int64{256}) {
      expect_part(*a.error, a.op, DeviceError::kBadGroup, a.starts, i, a.num_groups, a.num_rewards);
    }
  }
#pragma unroll 1
  for (Int64 i = blockIdx.x * Int64{8} + threadIdx.x / 32; i < a.num_groups;
       i += gridDim.x * Int64{8}) {
    const Group g = group(a, i);
    if (g.first >= g.last) continue;
    if (g.last - g.first == 1) {
      if (lane == 0) a.advantages[g.first] = advantage_alone(a, raw(g.first));
      continue;
    }
    const double one = raw(g.first);
    bool equal = true;
    double largest = 0.0;
#pragma unroll 1
    for (Int64 j = g.first + lane; j < g.last; j += 32) {
      const double x = raw(j), size = x < 0.0 ? -x : x;
      equal = equal && x == one;
      largest = size > largest ? size : largest;
    }
    equal = __all_sync(kFullWarp, equal);
    const double scale = scale_of(max_of_lanes(largest));
    const auto reward = [&](Int64 j) { return raw(j) * scale; };
    double sum = 0.0;
#pragma unroll 1
    for (Int64 j = g.first + lane; j < g.last; j += 32) sum = sum + reward(j);
    const double count = static_cast<double>(g.last - g.first);
    GroupStatistics s{scale, count, sum_of_lanes(sum) / count, 0.0};
    if (normalize(a) == kStd || normalize(a) == kLooStd) {
#pragma unroll 1
      for (Int64 j = g.first + lane; j < g.last; j += 32) {
        const double x = reward(j) - s.mean;
        s.squares = s.squares + x * x;
      }
    }
    s.squares = sum_of_lanes(s.squares);
    if (normalize(a) == kLooStd) {
      const Others others = others_of(a, s);
#pragma unroll 1
      for (Int64 j = g.first + lane; j < g.last; j += 32) {
        const double x = against_others(a, s, others, g, j, reward);
        a.advantages[j] = equal ? 0.0f : static_cast<float>(x);
      }
      continue;
    }
    // One division a group: a third one in the loop spills on sm_100.
    const double inverse = 1.0 / denominator(a, s);
#pragma unroll 1
    for (Int64 j = g.first + lane; j < g.last; j += 32) {
      a.advantages[j] = equal ? 0.0f : static_cast<float>((reward(j) - s.mean) * inverse);
    }
  }
}

}  // namespace rlk
