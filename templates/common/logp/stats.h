// SPDX-License-Identifier: Apache-2.0
// Statistics of a row's logits z beside its log-prob, in the arguments of every kernel that gives
// them: the maximum, its lowest column, the mean and the sum of squared probabilities. No gradient
// flows through them. Included by kernels of both backends, so this file includes nothing.
#pragma once

namespace rlk {

// Results, [rows] each; all null where they are not asked for.
struct LogitStats {
  float* max_logit;
  long long* argmax;  // -1: none
  float* mean_logit;
  float* sum_p2;
};

// Of leaves, each as partial_max lies, beside the maximum; null as above.
struct LogitStatsPartials {
  float* logits;   // sum of z
  float* squares;  // sum of exp(z - max)^2
  int* argmax;     // lowest column whose z is the maximum, or kNoColumn
};

constexpr int kNoColumn = 0x7fffffff;  // after every column

}  // namespace rlk
