// SPDX-License-Identifier: Apache-2.0
// The weight of a token under each reduction: one formula for both backends.
#pragma once

#include "common/loss/options.h"

namespace rlk {

struct LossCounts {
  long long tokens;     // active
  long long sequences;  // all
  long long valid;      // sequences with an active token
  long long groups;
};

// Weight of the active tokens of a sequence that has `in_sequence` of them, its group `in_group`.
// The inverse is taken in fp64 and rounded once.
RLK_INLINE float token_weight(long long reduction, const LossCounts& n, double length,
                              long long in_sequence, long long in_group) {
  double denominator = 1.0;  // kTokenSum
  switch (reduction) {
    case kTokenMean:
      denominator = static_cast<double>(n.tokens);
      break;
    case kSequenceMean:
      denominator = static_cast<double>(n.sequences) * static_cast<double>(in_sequence);
      break;
    case kSequenceMeanValid:
      denominator = static_cast<double>(n.valid) * static_cast<double>(in_sequence);
      break;
    case kSeqMeanTokenSum:
      denominator = static_cast<double>(n.valid);
      break;
    case kSeqMeanTokenSumNorm:
      denominator = static_cast<double>(n.sequences) * length;
      break;
    case kSeqMeanTokenSumNormValid:
      denominator = static_cast<double>(n.valid) * length;
      break;
    case kTokenSumOverL:
      denominator = length;
      break;
    case kSequenceSum:
      denominator = static_cast<double>(n.sequences);
      break;
    case kGroupMean:
      denominator = static_cast<double>(n.groups) * static_cast<double>(in_group);
      break;
    default:
      break;
  }
  return in_sequence > 0 && denominator > 0.0 ? static_cast<float>(1.0 / denominator) : 0.0f;
}

}  // namespace rlk
