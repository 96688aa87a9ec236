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
RLK_INLINE LogpLeaves<kLogpCpuLeaf> leaves_of(const Args& a) {
  return {vocab(a)};
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

// The sums of some columns of a vector of rows, about the columns' own maximum.
struct Partial {
  VecF max, sum, moment;
};
RLK_INLINE Partial no_columns() { return {splat(-__builtin_inff()), splat(0.0f), splat(0.0f)}; }

// Of two parts of a row: the one of the smaller maximum is moved to the other's. Beside a part
// without columns the other keeps its bits.
RLK_INLINE Partial join(const Partial& a, const Partial& b, bool entropy) {
  const auto first = a.max >= b.max;
  Partial joined = no_columns();
  joined.max = select(first, a.max, b.max);
  const VecF below = select(first, b.max, a.max) - base_of(joined.max);
  const VecF factor = exp(below), sum = select(first, b.sum, a.sum);
  joined.sum = fma(sum, factor, select(first, a.sum, b.sum));
  if (entropy) {
    const VecF moved = fma(exponent_factor(below), sum, select(first, b.moment, a.moment));
    joined.moment = fma(moved, factor, select(first, a.moment, b.moment));
  }
  return joined;
}

// Joins partials that come in order as a balanced tree.
struct Tree {
  bool entropy;
  Int64 count;
  Partial level[32];  // of 2^i partials each, where bit i of count is set

  RLK_INLINE_MEMBER explicit Tree(bool entropy) : entropy(entropy), count(0) {}
  RLK_INLINE_MEMBER void push(Partial partial) {
    Int64 i = 0;
#pragma clang loop unroll(disable)
    for (; count >> i & 1; ++i) partial = join(level[i], partial, entropy);
    level[i] = partial;
    ++count;
  }
  RLK_INLINE_MEMBER Partial total() const {
    Partial sum = no_columns();
#pragma clang loop unroll(disable)
    for (Int64 i = 0; count >> i != 0; ++i) {
      if (count >> i & 1) sum = join(level[i], sum, entropy);
    }
    return sum;
  }
};

// The results of a vector of rows, from the partials of their leaves; leaves.h has the order.
template <class Args>
RLK_INLINE void merge_rows(const Args& a, Int64 row) {
  const LogpLeaves<kLogpCpuLeaf> leaves = leaves_of(a);
  const bool entropy = has_entropy(a);
  Tree segments(entropy);
#pragma clang loop unroll(disable)
  for (Int64 leaf = 0; leaf < leaves.count();) {
    Tree tree(entropy);
#pragma clang loop unroll(disable)
    for (Int64 i = 0; i < leaves.of_segment(); ++i, ++leaf) {
      const Int64 at = leaf * a.padded_rows + row;
      tree.push({load(a.partial_max + at), load(a.partial_sum + at),
                 entropy ? load(a.partial_moment + at) : splat(0.0f)});
    }
    segments.push(tree.total());
  }
  const Partial whole = segments.total();
  const VecF max = whole.max, sum = whole.sum, moment = whole.moment;
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
