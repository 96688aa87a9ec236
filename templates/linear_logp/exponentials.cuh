// SPDX-License-Identifier: Apache-2.0
// dZ by way of exponentials: E = exp(z - maximum of the leaf), rounded to the 16-bit storage type,
// is what a forward may keep; dZ is E times one factor of the row and leaf, rounded again. A
// backward that finds none makes the same, so that bits do not follow what was kept.
#pragma once

#include "common/logp/formula.cuh"

namespace rlk {

// Halves have few exponents: E is kept times 2^15.
template <int kType>
constexpr float kExponentialScale = kType == kFloat16 ? 32768.0f : 1.0f;

// E of two columns, as they lie in memory.
template <int kType>
RLK_DEVICE unsigned pack_exponentials(float x, float y) {
  return Element<kType>::pack(x * kExponentialScale<kType>, y * kExponentialScale<kType>);
}

// What E becomes dZ by, in columns that are not the target's; `all` as in LogpCudaRowGrad.
template <int kType>
RLK_DEVICE float exponential_factor(float leaf_max, float max, float log_sum, float all) {
  const float p = exp_f32((leaf_max - max) - log_sum);
  return -(p * all) * (1.0f / kExponentialScale<kType>);
}

}  // namespace rlk
