// SPDX-License-Identifier: Apache-2.0
// The formula of a logit and its options, for every loop of linear_logp. Only their presence is a
// constant: where it is run-time, arguments that change nothing stand for an absent one, so that
// all variants have the same bits.
#pragma once

#include "linear_logp/rows.cuh"

namespace rlk {

// The same in all threads of a launch.
RLK_DEVICE bool has_softcap(const Args& a) {
  return kSoftcap < 0 ? a.softcap != 0.0f : kSoftcap != 0;
}
constexpr bool kMayHaveEntropy = kEntropy != 0;

RLK_DEVICE float scaled(const Args& a, float x) { return kLogitScale != 0 ? x * a.logit_scale : x; }

// The logit from the dot product, in two steps; `scale` is the inverse temperature, `slope` what
// the softcap multiplies the gradient by.
RLK_DEVICE float start_logit(const Args& a, float dot, float bias) { return scaled(a, dot + bias); }
template <bool kCap>
RLK_DEVICE float finish_logit(const Args& a, float x, float scale, float& slope) {
  if constexpr (!kCap) return x * scale;
  return a.softcap * tanh_f32(x * a.inverse_softcap, slope) * scale;
}

// A leaf of only -inf: take 0 as its maximum, so that terms are exp(-inf) = 0 and not NaN.
RLK_DEVICE float base_of(float max) { return max == -infinity() ? 0.0f : max; }

// x as a factor of exp(x): at least -128, below which exp gives 0, so that what is infinite or
// makes an infinite product adds a zero and no NaN.
RLK_DEVICE float exponent_factor(float below) { return max_f32(below, -128.0f); }

}  // namespace rlk
