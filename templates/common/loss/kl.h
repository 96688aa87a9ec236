// SPDX-License-Identifier: Apache-2.0
// Estimators of KL(policy || reference) of one token, and their derivatives.
#pragma once

#include "common/loss/exponential.h"
#include "common/loss/options.h"

namespace rlk {

RLK_INLINE VecF clamp(VecF x, float low, float high) {
  return select(x < low, splat(low), select(x > high, splat(high), x));
}

struct KlTerm {
  VecF value;
  VecF grad;  // with respect to the policy's log-prob
};

// e = ref - log_prob:
//   k1 -e, abs |e|, k2 e^2 / 2, k3 exp(e) - 1 - e with e clamped to +-kl_clamp
// Unbiased: the derivative is -e (that of k2, and of w * k3 with w = exp(log_prob - sg(log_prob))).
RLK_INLINE KlTerm kl_term(const LossChoices& c, const LossValues& v, VecF e) {
  const VecF zero = splat(0.0f);
  KlTerm k;
  Mask clamped = zero != zero;  // by one clamp or the other
  if (c.kl == kKl1) {
    k = {-e, splat(1.0f)};
  } else if (c.kl == kKlAbs) {
    k = {magnitude(e), select(e > 0.0f, splat(-1.0f), select(e < 0.0f, splat(1.0f), -e))};
  } else if (c.kl == kKl2) {
    k = {0.5f * e * e, -e};
  } else {
    clamped = (e > v.kl_clamp) | (e < -v.kl_clamp);
    const Exponential x = exponential(clamp(e, -v.kl_clamp, v.kl_clamp));
    k = {x.k3, select(clamped, zero, -x.expm1)};
  }
  const Mask cut = (k.value > v.kl_output_clamp) | (k.value < -v.kl_output_clamp);
  k.value = clamp(k.value, -v.kl_output_clamp, v.kl_output_clamp);
  clamped = clamped | cut;
  if (c.kl_gradient == kPathwise) {
    k.grad = select(cut, zero, k.grad);
  } else {
    k.grad = c.kl_gradient == kUnbiased ? -e : select(clamped, zero, -e);
  }
  return k;
}

}  // namespace rlk
