// SPDX-License-Identifier: Apache-2.0
// The formula of a logit, the merge of a row's leaves and the gradient of a logit on the CPU, for
// every op that has logits. `Args` are the op's arguments.
#pragma once

#include "../cpu/math.h"
#include "cpu_constants.h"
#include "cpu_types.h"

namespace rlk {
namespace {

RLK_INLINE Int64 min(Int64 a, Int64 b) { return a < b ? a : b; }
RLK_INLINE Int64 ceil_div(Int64 a, Int64 b) { return (a + b - 1) / b; }

template <class Args>
RLK_INLINE Int64 vocab(const Args& a) {
  return kV >= 0 ? kV : a.vocab;
}
template <class Args>
RLK_INLINE bool is_capped(const Args& a) {
  return kSoftcap >= 0 ? kSoftcap : a.softcap != 0;
}
template <class Args>
RLK_INLINE bool has_entropy(const Args& a) {
  return kEntropy >= 0 ? kEntropy : a.entropy != nullptr;
}
template <class Args>
RLK_INLINE bool has_entropy_grad(const Args& a) {
  return kEntropy >= 0 ? kEntropy : a.grad_entropy != nullptr;
}

// Where active row `row` of the strip lies in the outputs.
template <class Args>
RLK_INLINE Int64 output_row(const Args& a, Int64 row) {
  const Int64 i = a.first_row + row;
  return a.rows ? a.rows[i] : i;
}

struct Logit {
  VecF z;
  VecF slope;  // of the softcap, 1 - tanh^2
};

// The logit from the dot product; the order is fixed: bias, logit scale, softcap, temperature.
template <class Args>
RLK_INLINE Logit logit(const Args& a, VecF dot, float bias, VecF inverse_temperature) {
  VecF x = dot + bias, slope = splat(1.0f);
  if (kLogitScale != 0) x = x * a.logit_scale;
  if (is_capped(a)) {
    const Tanh t = tanh(x * a.inverse_softcap);
    x = t.value * a.softcap;
    slope = t.slope;
  }
  return {x * inverse_temperature, slope};
}

// A leaf of -inf alone: take 0 as its maximum, so that terms are exp(-inf) = 0 and not NaN.
RLK_INLINE VecF base_of(VecF max) { return select(max == -__builtin_inff(), splat(0.0f), max); }

// The results of a vector of rows: sums of all leaves, ascending, each scaled to the row's maximum.
template <class Args>
RLK_INLINE void merge_rows(const Args& a, Int64 row, Int64 leaves) {
  VecF max = splat(-__builtin_inff());
#pragma clang loop unroll(disable)
  for (Int64 leaf = 0; leaf < leaves; ++leaf) {
    const VecF m = load(a.partial_max + leaf * a.padded_rows + row);
    max = select(m > max, m, max);
  }
  const VecF base = base_of(max);
  const bool entropy = has_entropy(a);
  VecF sum = splat(0.0f), moment = splat(0.0f);
#pragma clang loop unroll(disable)
  for (Int64 leaf = 0; leaf < leaves; ++leaf) {
    const Int64 at = leaf * a.padded_rows + row;
    const VecF d = load(a.partial_max + at) - base;
    const VecF s = load(a.partial_sum + at);
    const VecF scale = exp(d);
    sum = fma(s, scale, sum);
    if (entropy) {
      const VecF shifted = fma(exponent_factor(d), s, load(a.partial_moment + at));
      moment = fma(shifted, scale, moment);
    }
  }
  alignas(64) float out[5][kLanes];
  const VecF log_sum = log(sum);
  store(out[0], (load(a.lane_target_logit + row) - max) - log_sum);
  store(out[1], max);
  store(out[2], log_sum);
  store(out[3], max + log_sum);
  if (entropy) store(out[4], log_sum - moment / sum);
#pragma clang loop unroll(disable) vectorize(disable)
  for (Int64 i = 0; i < min(kLanes, a.num_rows - row); ++i) {
    const Int64 to = output_row(a, row + i);
    a.logp[to] = out[0][i];
    if (a.row_max) a.row_max[to] = out[1][i];
    if (a.row_log_sum) a.row_log_sum[to] = out[2][i];
    if (a.lse) a.lse[to] = out[3][i];
    if (entropy) a.entropy[to] = out[4][i];
  }
}

// What the gradient of a row's logits is made of. Upstream gradients are those of a raw logit
// before the softcap: times the inverse temperature and the logit scale.
struct GradientValues {
  VecF max, log_sum;
  VecF grad;  // of the log-prob
  VecF rest;  // of the log-sum-exp, less grad: of every column, the target included
  VecF of_entropy = splat(0.0f), entropy = splat(0.0f);
};

// An upstream gradient of a row of this inverse temperature, as that of the raw logits.
template <class Args>
RLK_INLINE float scaled_grad(const Args& a, const float* grad, Int64 row,
                             float inverse_temperature) {
  if (!grad) return 0.0f;
  const float scaled = grad[row] * inverse_temperature;
  return kLogitScale != 0 ? scaled * a.logit_scale : scaled;
}

template <class Args>
RLK_INLINE VecF logit_gradient(const Args& a, Logit x, const GradientValues& row, VecI is_target) {
  const VecF none = splat(-__builtin_inff());
  const VecF l = (x.z - row.max) - row.log_sum;
  const VecF of_p = has_entropy_grad(a)
                        ? fma(-row.of_entropy, exponent_factor(l) + row.entropy, row.rest)
                        : row.rest;
  VecF dz = fma(of_p, exp(l), select(is_target, row.grad, splat(0.0f)));
  if (is_capped(a)) dz = dz * x.slope;
  // A column of -inf has no gradient, not even as the target; a row of only -inf stays NaN.
  return select((x.z == none) & (row.max != none), splat(0.0f), dz);
}

}  // namespace
}  // namespace rlk
