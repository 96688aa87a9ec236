// SPDX-License-Identifier: Apache-2.0
// The last metrics of a call, from its counts and extremes: both backends.
#pragma once

#include "ppo_loss/args.h"

namespace rlk {

RLK_INLINE void finish_metrics(const long long* counts, const float* extremes, long long* to_counts,
                               float* to_floats) {
  const long long active = counts[kCountActive];
  for (int i = 0; i < kNumCounts; ++i) to_counts[i] = counts[i];
  float* const to = to_floats + kNumSums - 1;
  // Without an active token: neutral values, so that every metric is finite.
  to[kRatioMax] = active > 0 ? extremes[kRatioMax] : 1.0f;
  to[kRatioMin] = active > 0 ? -extremes[kRatioMin] : 1.0f;
  to[kLogCorrectionMax] = extremes[kLogCorrectionMax];
  const long long clipped = counts[kCountClipHigh] + counts[kCountClipLow];
  to[kNumExtremes] = active > 0 ? static_cast<float>(clipped) / static_cast<float>(active) : 0.0f;
}

}  // namespace rlk
