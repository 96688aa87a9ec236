// SPDX-License-Identifier: Apache-2.0
// The formula of a logit and its options, for every op that has logits. Only their presence is a
// constant: where it is run-time, arguments that change nothing stand for an absent one, so that
// all variants have the same bits.
#pragma once

#include "common/logp/rows.cuh"

namespace rlk {

// Constants of the templates: kSoftcap 1: the softcap of the arguments; 0: none; -1: run-time, none
// where it is 0. kLogitScale 1 or -1: the logit_scale of the arguments; 0: 1.
constexpr bool kMayBeCapped = kSoftcap != 0, kIsCapRunTime = kSoftcap < 0;

// The same in all threads of a launch.
RLK_DEVICE bool has_cap_argument(const LogpCudaRows& a) {
  return kMayBeCapped && a.softcap != 0.0f;
}
RLK_DEVICE bool is_capped(const LogpCudaRows& a) {
  return kIsCapRunTime ? has_cap_argument(a) : kMayBeCapped;
}
RLK_DEVICE float capped(const LogpCudaRows& a, float x) {
  return a.softcap * tanh_f32(x * a.inverse_softcap);
}
constexpr bool kMayHaveEntropy = kEntropy != 0;

RLK_DEVICE float scaled(const LogpCudaRows& a, float x) {
  return kLogitScale != 0 ? x * a.logit_scale : x;
}

// The logit from the dot product, in two steps; `scale` is the inverse temperature, `slope` what
// the softcap multiplies the gradient by.
RLK_DEVICE float start_logit(const LogpCudaRows& a, float dot, float bias) {
  return scaled(a, dot + bias);
}
template <bool kCap>
RLK_DEVICE float finish_logit(const LogpCudaRows& a, float x, float scale, float& slope) {
  if constexpr (!kCap) return x * scale;
  return a.softcap * tanh_f32(x * a.inverse_softcap, slope) * scale;
}

// A leaf of only -inf: take 0 as its maximum, so that terms are exp(-inf) = 0 and not NaN.
RLK_DEVICE float base_of(float max) { return max == -infinity() ? 0.0f : max; }

// x as a factor of exp(x): at least -128, below which exp gives 0, so that what is infinite or
// makes an infinite product adds a zero and no NaN.
RLK_DEVICE float exponent_factor(float below) { return max_f32(below, -128.0f); }

// What dZ of a row is made of, and `most`, which no |dZ| exceeds: |p * (log p + entropy)| is at
// most entropy or 1 / e.
RLK_DEVICE LogpCudaRowGrad row_gradient(const LogpCudaRows& a, Int64 row, float& most) {
  const float scale = scaled(a, scale_of(a, row));
  const float of_logp = upstream(a.grad, row), of_lse = upstream(a.grad_lse, row);
  float of_entropy = 0.0f, entropy = 0.0f;
  if (kMayHaveEntropy && a.grad_entropy.data) {
    of_entropy = upstream(a.grad_entropy, row);
    entropy = a.entropy[row];
  }
  const float all = fma_rn(of_entropy, entropy, of_logp - of_lse);
  most = fma_rn(abs_f32(of_entropy), entropy + 1.0f, abs_f32(of_logp) + abs_f32(of_lse)) * scale;
  return {of_logp * scale, all * scale, of_entropy * scale};
}

// The logit that has no gradient, not even as the target: -inf; a row of only -inf stays NaN.
RLK_DEVICE float no_gradient(float max) { return max == -infinity() ? nan() : -infinity(); }

// dZ from finish_logit's z and slope. A softcap leaves no -inf.
template <bool kCap>
RLK_DEVICE float logit_gradient(float z, float slope, float max, float log_sum,
                                const LogpCudaRowGrad& grad, bool is_target, float none) {
  const float log_p = (z - max) - log_sum;
  float all = grad.all;
  if constexpr (kMayHaveEntropy) all = fma_rn(grad.log_p, exponent_factor(log_p), all);
  const float dz = fma_rn(-exp_f32(log_p), all, is_target ? grad.target : 0.0f);
  return kCap ? dz * slope : z == none ? 0.0f : dz;
}

}  // namespace rlk
