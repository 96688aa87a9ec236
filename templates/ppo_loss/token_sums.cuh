// SPDX-License-Identifier: Apache-2.0
// What the tokens of a thread of ppo_loss's forward add up to, one by one and in groups.
#pragma once

#include "common/cuda/exact_sum.cuh"
#include "ppo_loss/metrics.h"
#include "ppo_loss/tokens.cuh"

namespace rlk {

// What the tokens of a thread add up to, counts in 16 bits.
struct Totals {
  ExactLane<kTermBits> term, policy, kl_term;
  ExactLane<kTermBits> negative;  // terms below 0, but the large ones
  ExactLane<kMetricBits> ratio, ratio_squared, log_ratio, k3, correction, correction_squared,
      log_correction, kl, entropy;
  unsigned pairs[(kNumCounts + 1) / 2] = {};
  float ratio_max = -infinity(), minus_ratio_min = -infinity(), log_correction_max = 0.0f;

  RLK_DEVICE void add_count(int row, bool mask) {
    pairs[row / 2] += mask ? 1u << (16 * (row % 2)) : 0u;
  }
  RLK_DEVICE unsigned count(int row) const { return pairs[row / 2] >> (16 * (row % 2)) & 0xffffu; }

  // Calls each(lane, row, value) for every sum, value(t) being the term of a token: those that
  // follow from the ratio, then the others but kSumAbs.
  template <class Each>
  RLK_DEVICE void for_each_ratio_sum(Each each) {
    each(ratio, kSumRatio, [](const TokenResult& t) { return t.ratio; });
    each(ratio_squared, kSumRatioSquared, [](const TokenResult& t) { return t.ratio * t.ratio; });
    each(log_ratio, kSumLogRatio, [](const TokenResult& t) { return -t.log_ratio; });
    each(k3, kSumK3, [](const TokenResult& t) { return t.k3; });
  }
  template <class Each>
  RLK_DEVICE void for_each_other_sum(const LossChoices& c, Each each) {
    each(term, kSumLoss, [](const TokenResult& t) { return t.term; });
    if (c.kl || c.entropy) {
      each(policy, kSumPolicy, [](const TokenResult& t) { return t.policy_term; });
    }
    if (c.correction) {
      each(correction, kSumCorrection, [](const TokenResult& t) { return t.correction; });
      each(correction_squared, kSumCorrectionSquared,
           [](const TokenResult& t) { return t.correction * t.correction; });
      each(log_correction, kSumLogCorrection,
           [](const TokenResult& t) { return magnitude(t.log_correction); });
    }
    if (c.kl) each(kl, kSumKl, [](const TokenResult& t) { return t.kl; });
    if (c.kl) each(kl_term, kSumKlTerm, [](const TokenResult& t) { return t.kl_term; });
    if (c.entropy) each(entropy, kSumEntropy, [](const TokenResult& t) { return t.entropy; });
  }

  // What is no sum, of an active token, or of none.
  RLK_DEVICE void count_token(const LossChoices& c, const TokenResult& t, bool active) {
    if (c.correction) {
      const float size = active ? magnitude(t.log_correction) : 0.0f;
      log_correction_max = size > log_correction_max ? size : log_correction_max;
      add_count(kCountCorrectionHigh, active & t.correction_high);
      add_count(kCountCorrectionLow, active & t.correction_low);
      add_count(kCountRejected, active & t.rejected);
    }
    if (active & (t.ratio > ratio_max)) ratio_max = t.ratio;
    if (active & (-t.ratio > minus_ratio_min)) minus_ratio_min = -t.ratio;
    add_count(kCountActive, active);
    add_count(kCountClipHigh, active & t.clip_high);
    add_count(kCountClipLow, active & t.clip_low);
    add_count(kCountOutside, active & t.outside);
    add_count(kCountClamped, active & t.clamped);
    add_count(kCountNonfinite, active & t.nonfinite);
    if (c.dual_clip) add_count(kCountDual, active & t.dual);
  }

  // An active token.
  RLK_DEVICE void add(ExactBlock<kNumSums>& block, const LossChoices& c, const TokenResult& t) {
    const auto add_to = [&](auto& lane, int row, auto value) { lane.add(block, row, value(t)); };
    for_each_ratio_sum(add_to);
    for_each_other_sum(c, add_to);
    const float size = magnitude(t.term);
    if (is_large_term(size)) {
      block.add_large(kSumAbs, size, kTermBits);
    } else if (t.term < 0.0f) {
      negative.add_small(t.term);
    }
    count_token(c, t, true);
  }

  // Whether add_pair() takes it, whose log-ratio is below `most`: between 1 / e and e every term of
  // the ratio is below 8.
  RLK_DEVICE bool is_small(const LossChoices& c, const TokenResult& t, float most) {
    bool small = magnitude(t.log_ratio) < most;
    for_each_other_sum(
        c, [&](auto&, int, auto value) { small = small & !is_large_term(magnitude(value(t))); });
    return small;
  }

  // The sums of two tokens, each where it is to be added.
  RLK_DEVICE void add_pair(const LossChoices& c, const TokenResult* t, const bool* is_added) {
    const auto add_to = [&](auto& lane, int row, auto value) {
      ExactTerm terms[2], below[2];
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const float x = is_added[i] ? value(t[i]) : 0.0f;
        terms[i] = lane.exact(x);
        below[i] = x < 0.0f ? terms[i] : ExactTerm{0, 0};
      }
      lane.add(terms[0], terms[1]);
      if (row == kSumLoss) negative.add(below[0], below[1]);
    };
    for_each_ratio_sum(add_to);
    for_each_other_sum(c, add_to);
  }

  RLK_DEVICE void store(ExactBlock<kNumSums>& block, const LossChoices& c) const {
    term.store(block, kSumLoss);
    ExactLane<kTermBits>(term, negative).store(block, kSumAbs);
    policy.store(block, kSumPolicy);
    ratio.store(block, kSumRatio);
    ratio_squared.store(block, kSumRatioSquared);
    log_ratio.store(block, kSumLogRatio);
    k3.store(block, kSumK3);
    correction.store(block, kSumCorrection);
    correction_squared.store(block, kSumCorrectionSquared);
    log_correction.store(block, kSumLogCorrection);
    kl.store(block, kSumKl);
    kl_term.store(block, kSumKlTerm);
    entropy.store(block, kSumEntropy);
  }
};

RLK_DEVICE float max_of_warp(float x) {
#pragma unroll
  for (int lanes = 1; lanes < 32; lanes *= 2) x = max_f32(x, shfl_xor(x, lanes));
  return x;
}

// Whether a thread takes a group of neighbouring tokens at once: not where choices of run time, or
// a token with all that it may have, would take more registers than there are. For sm_120 ptxas
// spills with four where it has registers left for other targets.
constexpr bool kTakesGroups =
    kPolicy >= 0 && kRatio >= 0 && kEntropy >= 0 && !(kKl > 0 && (kCorrection > 0 || kEntropy > 0));
#if __CUDA_ARCH__ >= 1200
constexpr int kGroup = 2;
#else
constexpr int kGroup = kKl > 0 || kEntropy > 0 ? 2 : 4;
#endif

template <int kCount>
struct Group;
template <>
struct Group<2> {
  using Floats = float2;
  using Bytes = unsigned short;
};
template <>
struct Group<4> {
  using Floats = float4;
  using Bytes = unsigned;
};
union GroupFloats {
  Group<kGroup>::Floats all;
  float x[kGroup];
};

// Which tokens of a group are active, by bit.
RLK_DEVICE unsigned active_of_group(const PpoLossArgs& a, Int64 t) {
  if (!a.mask) return (1u << kGroup) - 1;
  const unsigned x = *reinterpret_cast<const Group<kGroup>::Bytes*>(a.mask + t);
  unsigned active = 0;
#pragma unroll
  for (int k = 0; k < kGroup; ++k) active |= (x >> (8 * k) & 0xff) != 0 ? 1u << k : 0u;
  return active;
}

// Neighbouring tokens of a sequence. Returns which of them are left to be added, by bit: those out
// of the ordinary.
RLK_DEVICE unsigned add_group(const PpoLossArgs& a, const LossChoices& c, const LossValues& v,
                              const TokenInput& shared_in, Int64 t, Totals& totals, float* grad,
                              float* grad_entropy) {
  const unsigned active = active_of_group(a, t);
  if (active == 0) return 0;
  TokenInput in[kGroup];
#pragma unroll
  for (int k = 0; k < kGroup; ++k) in[k] = shared_in;
  const auto read = [&](const float* from, float TokenInput::* to) {
    const GroupFloats group{*reinterpret_cast<const Group<kGroup>::Floats*>(from + t)};
#pragma unroll
    for (int k = 0; k < kGroup; ++k) in[k].*to = group.x[k];
  };
  read(a.log_probs, &TokenInput::log_prob);
  read_inputs(a, c, read);
  constexpr bool kIsPlain = kRatio == kTokenRatio;
  float most = kPlainLogRatio;
  if (kIsPlain) most = min(most, min(-v.log_ratio_low, v.log_ratio_high));
  unsigned left = 0;
#pragma unroll
  for (int pair = 0; pair < kGroup; pair += 2) {
    TokenResult result[2];
    bool is_added[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int k = pair + half;
      const bool is_active = (active >> k & 1) != 0;
      in[k].active = true;
      result[half] = token_loss(c, v, in[k], kIsPlain);
      bool is_ordinary = totals.is_small(c, result[half], most);
      if (kIsPlain && c.correction) {
        is_ordinary = is_ordinary & (magnitude(in[k].advantage) < kPlainAdvantage);
      }
      is_added[half] = is_active & is_ordinary;
      totals.count_token(c, result[half], is_added[half]);
      left |= is_active & !is_ordinary ? 1u << k : 0u;
      grad[k] = is_added[half] ? result[half].grad : 0.0f;
      if (c.entropy) grad_entropy[k] = is_added[half] ? result[half].grad_entropy : 0.0f;
    }
    totals.add_pair(c, result, is_added);
  }
  return left;
}

RLK_DEVICE void store_group(float* to, Int64 t, const float* x) {
  GroupFloats group;
#pragma unroll
  for (int k = 0; k < kGroup; ++k) group.x[k] = x[k];
  *reinterpret_cast<Group<kGroup>::Floats*>(to + t) = group.all;
}

}  // namespace rlk
