// SPDX-License-Identifier: Apache-2.0
// Statistics of logits on the device: of a leaf, from the registers that hold it, and of two parts
// of a row. A pass of its own over the leaf, so that a variant without it is what it is alone.
#pragma once

#include "common/logp/formula.cuh"

namespace rlk {

struct LeafStats {
  float logits, squares;
  int argmax;
};
RLK_DEVICE LeafStats no_stats() { return {0.0f, 0.0f, kNoColumn}; }

RLK_DEVICE LeafStats load_stats(const LogitStatsPartials& from, Int64 at) {
  return {from.logits[at], from.squares[at], from.argmax[at]};
}
RLK_DEVICE void store_stats(const LogitStatsPartials& to, Int64 at, const LeafStats& stats) {
  to.logits[at] = stats.logits;
  to.squares[at] = stats.squares;
  to.argmax[at] = stats.argmax;
}

// Of parts that lie about one maximum: lanes and warps of a leaf.
RLK_DEVICE LeafStats add_stats(const LeafStats& a, const LeafStats& b) {
  return {a.logits + b.logits, a.squares + b.squares, min(a.argmax, b.argmax)};
}
template <int kLanes, int kApart>
RLK_DEVICE LeafStats add_lanes(LeafStats own) {
#pragma unroll
  for (int lanes = kApart; lanes < kLanes * kApart; lanes *= 2) {
    own = add_stats(own, {shfl_xor(own.logits, lanes), shfl_xor(own.squares, lanes),
                          __shfl_xor_sync(kFullWarp, own.argmax, lanes)});
  }
  return own;
}

// A leaf of kLanes lanes, kApart from one to the next, of which this one has z(i), i below kCount:
// runs of kRun columns that are kStep apart, from column `first` of the leaf on. Those beyond the
// leaf are -inf. Sums in the order of the leaf's other sums.
template <int kCount, int kRun, int kStep, int kLanes, int kApart, class Logit>
RLK_DEVICE LeafStats leaf_stats(const LogpLeaf& leaf, int first, float max, const Logit& z) {
  const auto col = [](int i) { return i / kRun * kStep + i % kRun; };
  const int left = leaf.cols - first;
  // From the next lane, which has the same: else the compiler would keep the terms of the leaf's
  // sum for here, more than registers hold.
  const float base = shfl_xor(base_of(max), kApart);
  LeafStats own = no_stats();
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    const float term = exp_f32(z(i) - base);
    own.squares = fma_rn(term, term, own.squares);
    own.logits = own.logits + (col(i) < left ? z(i) : 0.0f);
  }
#pragma unroll
  for (int i = kCount - 1; i >= 0; --i) own.argmax = z(i) == max ? col(i) : own.argmax;
  own.argmax = own.argmax < left ? leaf.begin + first + own.argmax : kNoColumn;
  return add_lanes<kLanes, kApart>(own);
}

// Of two parts of a row; first: a has the larger maximum, or the same. `factor` moves what is about
// the smaller maximum to the other.
RLK_DEVICE LeafStats join_stats(const LeafStats& a, const LeafStats& b, bool first, bool same,
                                float factor) {
  const int of_larger = first ? a.argmax : b.argmax;
  return {a.logits + b.logits,
          fma_rn(first ? b.squares : a.squares, factor * factor, first ? a.squares : b.squares),
          same ? min(a.argmax, b.argmax) : of_larger};
}

}  // namespace rlk
