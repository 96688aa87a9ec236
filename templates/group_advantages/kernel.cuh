// SPDX-License-Identifier: Apache-2.0
// group_advantages on CUDA: rewards against the mean of their group.
//
//   advantage = (reward - mean) / denominator, in float64, two passes; 0 in a group of equal
//   rewards std     sqrt(sum (reward - mean)^2 / (n - ddof)) + eps, or max(that, eps) center  1
//   rloo    (n - 1) / n: the mean is of the others
//
// Rendered before this text; args.h has their values, -1 is run-time:
//   kNormalize, kEpsIsMax
//
//                                   grid
//   rlk_group_advantages_fwd_main   any x 256, a warp a group -> advantages
//
// Reads each reward three times, writes 4 bytes. A lane adds every 32nd reward, then the lanes a
// tree: the order follows the group's size alone.
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

extern "C" __global__ void __launch_bounds__(256)
    rlk_group_advantages_fwd_main(const __grid_constant__ GroupAdvantagesArgs a) {
  const int lane = threadIdx.x % 32;
  const auto reward = [&](Int64 j) {
    if (a.type == kFloat64) return static_cast<const double*>(a.rewards)[j * a.stride];
    return static_cast<double>(read_float(a.rewards, j * a.stride, a.type));
  };
#pragma unroll 1
  for (Int64 i = blockIdx.x * Int64{8} + threadIdx.x / 32; i < a.num_groups;
       i += gridDim.x * Int64{8}) {
    const auto [first, last] = group(a, i);
    if (first >= last) continue;
    const double one = reward(first);
    bool equal = true;
    double sum = 0.0;
#pragma unroll 1
    for (Int64 j = first + lane; j < last; j += 32) {
      const double x = reward(j);
      equal = equal && x == one;
      sum = sum + x;
    }
    equal = __all_sync(kFullWarp, equal);
    const double count = static_cast<double>(last - first), mean = sum_of_lanes(sum) / count;
    double squares = 0.0;
    if (normalize(a) == kStd) {
#pragma unroll 1
      for (Int64 j = first + lane; j < last; j += 32) {
        const double x = reward(j) - mean;
        squares = squares + x * x;
      }
    }
    // One division a group: a third one in the loop spills on sm_100.
    const double inverse = 1.0 / denominator(a, count, sum_of_lanes(squares));
#pragma unroll 1
    for (Int64 j = first + lane; j < last; j += 32) {
      a.advantages[j] = equal ? 0.0f : static_cast<float>((reward(j) - mean) * inverse);
    }
  }
}

}  // namespace rlk
