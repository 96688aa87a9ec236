// SPDX-License-Identifier: Apache-2.0
// The ratio and the KL estimate of one token, and the derivative of both: both backends.
#pragma once

#include "common/loss/kl.h"
#include "ratio_kl/args.h"

namespace rlk {

RLK_INLINE LossChoices choices(const RatioKlArgs& a) {
  LossChoices c = a.choices;
  if (kKl >= 0) c.kl = kKl;
  if (kKlGradient >= 0) c.kl_gradient = kKlGradient;
  c.kl_weight = kNoKlRatio;
  return c;
}

struct RatioKlToken {
  VecF ratio, kl, ratio_slope, kl_slope;
};

// Selected, not multiplied: what an inactive token holds never meets exp.
RLK_INLINE RatioKlToken ratio_kl(const LossChoices& c, const LossValues& v, Mask active,
                                 VecF log_prob, VecF old, VecF ref) {
  const VecF zero = splat(0.0f);
  const VecF delta = select(active, log_prob - old, zero);
  const Mask moves = !((delta < v.log_ratio_low) | (delta > v.log_ratio_high));
  const VecF ratio = exponential(clamp(delta, v.log_ratio_low, v.log_ratio_high)).exp;
  const KlTerm k = kl_term(c, v, select(active, ref - log_prob, zero), {});
  return {ratio, select(active, k.value, zero), select(active & moves, ratio, zero),
          select(active, k.grad, zero)};
}

// Of log_prob, from the upstream gradients; 0 * inf is no gradient of a token that has none.
RLK_INLINE VecF ratio_kl_gradient(VecF grad_ratio, VecF ratio_slope, VecF grad_kl, VecF kl_slope) {
  const VecF zero = splat(0.0f);
  return select(ratio_slope == 0.0f, zero, grad_ratio * ratio_slope) +
         select(kl_slope == 0.0f, zero, grad_kl * kl_slope);
}

}  // namespace rlk
