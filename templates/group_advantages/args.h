// SPDX-License-Identifier: Apache-2.0
// What group_advantages's kernels and their host code agree on.
#pragma once

namespace rlk {

enum AdvantageNormalize : long long { kStd, kCenter, kRloo, kLooStd };
enum AdvantageOfOne : long long { kZero, kReward, kRefused };  // kRefused: NaN where it gets by

struct DeviceError;

struct GroupAdvantagesArgs {
  long long num_rewards, num_groups;
  const void* rewards;
  long long stride;         // of rewards, in elements
  int type;                 // a TypeCode; CPU: dense float64
  const long long* starts;  // [num_groups + 1]; null: group_size each
  long long group_size;
  long long normalize;   // an AdvantageNormalize; read where kNormalize is -1
  long long eps_is_max;  // 1: divides by max(std, eps), 0: by std + eps; where kEpsIsMax is -1
  long long ddof;
  double eps;
  long long group_of_one;  // an AdvantageOfOne
  float* advantages;       // [num_rewards]
  DeviceError* error;      // CUDA
  const char* op;          // for `error`
};

using GroupAdvantagesCpuStep = void (*)(const GroupAdvantagesArgs* args, long long begin,
                                        long long end);

}  // namespace rlk
