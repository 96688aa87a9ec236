// SPDX-License-Identifier: Apache-2.0
// The token function of every policy loss: value, derivative, and what the metrics count.
//
//   term = w * rho * l + w_kl * beta * k - w * c_H * H     L is the sum of terms
//   grad = w * rho * l' + w_kl * beta * k'                 with respect to the policy's log-prob
//
// with the ratio r = exp(clamp(log_prob - old)), A the advantage:
//   ppo        l = max(-A r, -A clip(r)), l' = -A r or 0
//   dual clip  where A < 0: l = min(l, -A c)
//   delta      l = max(-A min(r, c), -A clip(r))
//   cispo      l = -clip(r) A log_prob, clip(r) a constant
//   sapo       l = -A (4 / tau) s(tau (r - 1)), s the logistic function
//   gpg        l = -A log_prob
// r, and the advantage, may be the sequence's: of means over its tokens. Then the derivative of
// what is multiplied by r or made of it goes to the token itself (kSequenceTokenRatio: gspo-token),
// or is summed over the sequence and spread evenly (kSequenceRatio): sequence_grad here, the sum of
// which over n comes back as TokenInput::sequence_grad. An inactive token is selected away before
// any arithmetic: it may hold anything.
#pragma once

#include "common/loss/kl.h"

namespace rlk {

struct TokenInput {
  Mask active;
  VecF log_prob, old, advantage;
  VecF rollout, ref, entropy;  // each read with its choice alone
  VecF weight, kl_weight;      // w, w_kl
  VecF given;                  // rho, with kGiven
  VecF sequence_log_ratio;     // mean of log_prob - old
  VecF sequence_statistic;     // correction of a sequence: sum or mean of old - rollout
  VecF sequence_grad;          // kSequenceRatio: what each token has of its sequence's
};

struct TokenResult {
  VecF term, policy_term, kl_term;  // policy_term: w * rho * l; kl_term: w_kl * k
  VecF grad, grad_entropy;
  VecF sequence_grad;               // with respect to the mean log-ratio: of this token's term
  VecF ratio, log_ratio, k3;        // log_ratio clamped; k3 of it
  VecF correction, log_correction;  // rho, u
  VecF kl, entropy;
  Mask clip_high, clip_low, dual, outside, clamped;
  Mask correction_high, correction_low, rejected, nonfinite;
};

RLK_INLINE Mask is_finite(VecF x) { return x - x == 0.0f; }

struct PolicyTerm {
  VecF value, grad;
};

// l and l' where the ratio is capped, both signs of A; `dual`: the cap sets l.
RLK_INLINE PolicyTerm capped_term(const LossValues& v, VecF a, VecF ratio, VecF clipped,
                                  Mask& dual) {
  const Mask capped = ratio > v.dual_ratio;
  const VecF plain = -a * ratio, bounded = -a * clipped;
  const VecF first = select(capped, -a * v.dual_ratio, plain);
  const Mask is_first = first >= bounded;
  dual = capped & (first > bounded);
  const Mask has_slope = (is_first & !capped) | (!is_first & (clipped == ratio));
  return {select(is_first, first, bounded), select(has_slope, plain, splat(0.0f))};
}

// l and l' of an active or neutral token. `moves`: the log-ratio is inside its clamp.
RLK_INLINE PolicyTerm policy_term(const LossChoices& c, const LossValues& v, const TokenInput& in,
                                  const Exponential& r, Mask moves, bool is_plain,
                                  TokenResult& out) {
  const VecF zero = splat(0.0f), a = in.advantage;
  const VecF clipped = clamp(r.exp, v.ratio_low, v.ratio_high);
  const Mask above = r.exp > v.ratio_high, below = r.exp < v.ratio_low;
  out.outside = in.active & (above | below);
  out.clip_high = in.active & above & (a > 0.0f);
  out.clip_low = in.active & below & (a < 0.0f);
  out.dual = in.active & (zero != 0.0f);
  PolicyTerm l;
  if (c.policy == kGpg) {
    l = {-a * in.log_prob, -a};
  } else if (c.policy == kCispo) {
    l = {-clipped * a * in.log_prob, -clipped * a};
  } else if (c.policy == kSapo) {
    const VecF tau = select(a > 0.0f, splat(v.tau_positive), splat(v.tau_negative));
    const Logistic s = logistic(tau * r.expm1);
    // Far above 1 the ratio may be infinite where the slope is 0 long before.
    const VecF slope = 4.0f * s.value * s.rest;
    l = {-a * (4.0f / tau) * s.value, select(moves & (slope != 0.0f), -a * slope * r.exp, zero)};
  } else if (c.dual_clip == kRatioCap) {
    l = capped_term(v, a, r.exp, clipped, out.dual);
    l.grad = select(moves, l.grad, zero);
  } else {
    const VecF plain = -a * r.exp, bounded = -a * clipped;
    const Mask has_plain = plain >= bounded;
    l = {select(has_plain, plain, bounded), select(has_plain & moves, plain, zero)};
    if (c.dual_clip == kLossCap) {
      const VecF most = -a * v.dual_ratio;
      out.dual = in.active & (a < 0.0f) & (l.value > most);
      l = {select(out.dual, most, l.value), select(out.dual, zero, l.grad)};
    }
  }
  // 0 * inf is no part of a token without advantage; NaN is shown in the gradient too.
  const Mask none = a == 0.0f;
  l.value = select(none, zero, l.value);
  if (is_plain) return {l.value, select(none, zero, l.grad)};
  return {l.value, select(none, zero, select(l.value == l.value, l.grad, l.value))};
}

// e^statistic, and where it is out of its bounds.
struct BoundedWeight {
  VecF rho;
  Mask overflow, high, low;
};
RLK_INLINE BoundedWeight bounded_weight(const LossValues& v, VecF statistic) {
  const VecF rho = exponential(clamp(statistic, -v.correction_clamp, v.correction_clamp)).exp;
  const Mask overflow = statistic > v.correction_overflow_log;
  const Mask high = (rho > v.correction_high) & !overflow;
  return {rho, overflow, high, rho < v.correction_low};
}

// Whether a mask or band makes a token's weight 0 by its own u.
RLK_INLINE Mask is_rejected(const LossValues& v, VecF u) {
  const BoundedWeight w = bounded_weight(v, u);
  return w.overflow | w.high | w.low;
}

// rho of a token. Rejected: rho is 0 because the statistic is out of its bounds, or it is given so.
RLK_INLINE VecF correction(const LossChoices& c, const LossValues& v, const TokenInput& in, VecF u,
                           TokenResult& out) {
  if (c.correction == kGiven) {
    out.rejected = in.active & (in.given == 0.0f);
    return in.given;
  }
  const VecF statistic = c.level == kTokenLevel ? u : in.sequence_statistic;
  const auto [weight, overflow, high, low] = bounded_weight(v, statistic);
  VecF rho = weight;
  out.correction_high = in.active & high;
  out.correction_low = in.active & low;
  out.rejected = in.active & overflow;
  if (c.correction == kTruncate) {
    rho = select(high, splat(v.correction_high), select(low, splat(v.correction_low), rho));
  } else {
    out.rejected = in.active & (overflow | high | low);
    if (c.correction == kBand) {
      rho = select(rho == rho, exponential(clamp(u, -v.correction_clamp, v.correction_clamp)).exp,
                   rho);
    }
  }
  return select(out.rejected, splat(0.0f), rho);
}

// `own`: log_prob - old, `of_rollout`: log_prob - rollout, of an active or neutral token.
RLK_INLINE KlWeight kl_weight(const LossChoices& c, const LossValues& v, VecF own, VecF of_rollout,
                              VecF ratio, Mask moves) {
  const Mask no = splat(0.0f) != 0.0f;
  if (c.kl_weight == kPolicyRatio) {
    const bool is_of_sequence = c.ratio == kSequenceRatio;
    return {ratio, is_of_sequence ? no : moves, is_of_sequence ? moves : no};
  }
  const VecF x = c.kl_weight == kOwnRatio ? own : of_rollout;
  const Mask is_inside = !((x < v.kl_log_ratio_low) | (x > v.kl_log_ratio_high));
  return {exponential(clamp(x, v.kl_log_ratio_low, v.kl_log_ratio_high)).exp, is_inside, no};
}

// Below this a log-ratio of a plain token lies, and below that its advantage: magnitudes.
constexpr float kPlainLogRatio = 1.0f, kPlainAdvantage = 0x1p64f;

// Plain: it is known of every token that log_prob - old is its log-ratio, is inside its clamp and
// plain, and that the advantage is plain, or else the term is not looked at where that shows no
// infinity and no NaN. The results are the same.
RLK_INLINE TokenResult token_loss(const LossChoices& c, const LossValues& v, TokenInput in,
                                  bool is_plain = false) {
  const VecF zero = splat(0.0f);
  TokenResult out;
  VecF delta = in.log_prob - in.old;
  VecF own = delta, of_rollout = zero, u = zero, e = zero;
  const Mask yes = zero == 0.0f;
  Mask finite = yes;
  if (!is_plain) {
    finite = is_finite(in.log_prob) & is_finite(in.old) & is_finite(in.advantage);
  }
  if (reads_rollout(c)) {
    u = in.old - in.rollout;
    of_rollout = in.log_prob - in.rollout;
    finite = finite & is_finite(in.rollout);
  }
  if (c.correction == kGiven) {
    finite = finite & is_finite(in.given);
    in.given = select(in.active, in.given, zero);
  }
  if (c.kl) {
    e = in.ref - in.log_prob;
    finite = finite & is_finite(in.ref);
  }
  if (c.entropy) finite = finite & is_finite(in.entropy);
  if (c.ratio != kTokenRatio) delta = in.sequence_log_ratio;
  // Selected, not multiplied: what follows never sees an inactive value.
  delta = select(in.active, delta, zero);
  own = select(in.active, own, zero);
  of_rollout = select(in.active, of_rollout, zero);
  u = select(in.active, u, zero);
  e = select(in.active, e, zero);
  in.advantage = select(in.active, in.advantage, zero);
  in.log_prob = select(in.active, in.log_prob, zero);
  in.sequence_statistic = select(in.active, in.sequence_statistic, zero);
  out.entropy = c.entropy ? select(in.active, in.entropy, zero) : zero;
  out.nonfinite = in.active & !finite;

  out.log_ratio = delta;
  Mask moves = yes;
  if (!is_plain) {
    out.log_ratio = clamp(delta, v.log_ratio_low, v.log_ratio_high);
    moves = !((delta < v.log_ratio_low) | (delta > v.log_ratio_high));
  }
  out.clamped = in.active & !moves;
  const Exponential r = exponential(out.log_ratio, is_plain);
  out.ratio = r.exp;
  out.k3 = r.k3;

  PolicyTerm l = policy_term(c, v, in, r, moves, is_plain, out);
  out.correction = splat(1.0f);
  out.log_correction = u;
  out.correction_high = out.correction_low = out.rejected = in.active & (zero != 0.0f);
  if (c.correction) {
    out.correction = correction(c, v, in, u, out);
    l.value = select(out.rejected, zero, out.correction * l.value);
    l.grad = select(out.rejected, zero, out.correction * l.grad);
  }
  out.policy_term = in.weight * l.value;
  out.term = out.policy_term;
  VecF grad = in.weight * l.grad;
  // cispo and gpg hold the ratio constant: their derivative is the token's own.
  const bool is_through_ratio = c.policy == kPpo || c.policy == kSapo;
  out.sequence_grad = zero;
  if (c.ratio == kSequenceRatio && is_through_ratio) {
    out.sequence_grad = grad;
    grad = zero;
  }

  out.kl = out.kl_term = zero;
  if (c.kl) {
    const KlTerm k = kl_term(c, v, e, kl_weight(c, v, own, of_rollout, r.exp, moves));
    out.kl = k.value;
    out.kl_term = select(in.active, in.kl_weight * k.value, zero);
    out.term = out.term + in.kl_weight * (v.kl_coef * k.value);
    grad = grad + in.kl_weight * (v.kl_coef * k.grad);
    out.sequence_grad = out.sequence_grad + in.kl_weight * (v.kl_coef * k.sequence_grad);
  }
  out.grad_entropy = zero;
  if (c.entropy) {
    out.term = out.term - in.weight * (v.entropy_coef * out.entropy);
    out.grad_entropy = select(in.active, -(in.weight * v.entropy_coef), zero);
  }
  if (c.ratio == kSequenceRatio) {
    const Mask is_left = c.leaves ? in.active & !out.rejected : in.active;
    out.sequence_grad = select(is_left, out.sequence_grad, zero);
    grad = grad + select(is_left, in.sequence_grad, zero);
  }
  out.grad = select(in.active, grad, zero);
  out.policy_term = select(in.active, out.policy_term, zero);
  out.term = select(in.active, out.term, zero);
  return out;
}

}  // namespace rlk
