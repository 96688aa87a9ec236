// SPDX-License-Identifier: Apache-2.0
// Estimators of KL(policy || reference) of one token, and their derivatives.
#pragma once

#include "common/loss/exponential.h"
#include "common/loss/options.h"

namespace rlk {

RLK_INLINE VecF clamp(VecF x, float low, float high) {
  return select(x < low, splat(low), select(x > high, splat(high), x));
}

// What the estimate is multiplied by.
struct KlWeight {
  VecF value;
  Mask moves;         // with the token's own log-prob
  Mask moves_others;  // with the log-probs of all tokens of the sequence
};

struct KlTerm {
  VecF value;
  VecF grad;           // with respect to the policy's log-prob
  VecF sequence_grad;  // with respect to the mean log-ratio of the sequence
};

// e = ref - log_prob, clamped to +-kl_clamp:
//   k1 -e, abs |e|, k2 e^2 / 2, k3 exp(e) - 1 - e
// times the weight g, the product clamped to +-kl_output_clamp. Derivatives:
//   pathwise     (g k)' = g (k' + k), or g k' where g is a constant; 0 beyond a clamp
//   unbiased     -g e whatever the value: that of k2, and of w * k3 with w = exp(log_prob - sg(.))
//   importance   of w g k: g (k' + k), 0 beyond a clamp
// k' + k is written without what cancels: -e for k3.
RLK_INLINE KlTerm kl_term(const LossChoices& c, const LossValues& v, VecF e, const KlWeight& g) {
  const VecF zero = splat(0.0f), x = clamp(e, -v.kl_clamp, v.kl_clamp);
  const Mask inside = !((e > v.kl_clamp) | (e < -v.kl_clamp));
  VecF k, slope, both;
  if (c.kl == kKl1) {
    k = -x;
    slope = splat(1.0f);
    both = 1.0f - x;
  } else if (c.kl == kKlAbs) {
    k = magnitude(x);
    slope = select(x > 0.0f, splat(-1.0f), select(x < 0.0f, splat(1.0f), -x));
    both = k + slope;
  } else if (c.kl == kKl2) {
    k = 0.5f * x * x;
    slope = -x;
    both = k + slope;
  } else {
    const Exponential exp = exponential(x);
    k = exp.k3;
    slope = -exp.expm1;
    both = -x;
  }
  slope = select(inside, slope, zero);
  KlTerm term{k, slope, zero};
  VecF unbiased = -e;
  if (c.kl_weight != kNoKlRatio) {
    term.value = g.value * k;
    term.grad = g.value * select(g.moves, select(inside, both, k), slope);
    term.sequence_grad = select(g.moves_others, term.value, zero);
    both = g.value * both;
    unbiased = g.value * unbiased;
  }
  if (c.kl_gradient != kPathwise) {
    term.grad = select(inside, both, zero);
    term.sequence_grad = zero;
  }
  const Mask cut = (term.value > v.kl_output_clamp) | (term.value < -v.kl_output_clamp);
  term.value = clamp(term.value, -v.kl_output_clamp, v.kl_output_clamp);
  term.grad = select(cut, zero, term.grad);
  term.sequence_grad = select(cut, zero, term.sequence_grad);
  if (c.kl_gradient == kUnbiased) term.grad = unbiased;
  return term;
}

}  // namespace rlk
