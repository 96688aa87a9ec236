// SPDX-License-Identifier: Apache-2.0
// Entry points of ppo_loss's forward on CUDA; see kernel.cuh.
#pragma once

#include "common/cuda/element.cuh"
#include "common/cuda/exact_sum.cuh"
#include "common/loss/token.h"
#include "ppo_loss/choices.h"
#include "ppo_loss/figures.h"

namespace rlk {

using Args = PpoLossArgs;
using CountBlock = ExactBlock<2>;

// Element `row`, `col` of an array of any type and strides as a dense one.
extern "C" __global__ void rlk_ppo_loss_fwd_pack(const __grid_constant__ PpoLossPack p) {
#pragma unroll 1
  for (Int64 at = blockIdx.x * Int64{256} + threadIdx.x; at < p.rows * p.cols;
       at += gridDim.x * Int64{256}) {
    const Int64 row = at / p.cols;
    const Int64 from = row * p.row_stride + (at - row * p.cols) * p.col_stride;
    if (p.to_kind == PpoLossPack::kFloats) {
      static_cast<float*>(p.to)[at] = read_float(p.from, from, p.type);
    } else if (p.to_kind == PpoLossPack::kBytes) {
      static_cast<unsigned char*>(p.to)[at] = read_mask(p.from, from, p.type);
    } else {
      static_cast<long long*>(p.to)[at] = read_integer(p.from, from, p.type);
    }
  }
}

RLK_DEVICE bool is_active(const Args& a, Int64 token) { return !a.mask || a.mask[token] != 0; }

// A block a sequence: its active tokens, and the sums that its statistics need.
extern "C" __global__ void __launch_bounds__(512)
    rlk_ppo_loss_fwd_count(const __grid_constant__ Args a) {
  __shared__ CountBlock sums;
  __shared__ long long counts[16];
  const LossChoices c = choices(a);
  const bool needs_ratio = c.policy == kGspo;
  const bool needs_statistic = c.correction && c.level != kTokenLevel;
#pragma unroll 1
  for (Int64 i = blockIdx.x; i < a.num_sequences; i += gridDim.x) {
    sums.clear();
    ExactLane<kTermBits> ratio, statistic;
    long long n = 0;
    const Int64 last = start_of(a, i + 1);
#pragma unroll 1
    for (Int64 t = start_of(a, i) + threadIdx.x; t < last; t += 512) {
      if (!is_active(a, t)) continue;
      ++n;
      if (needs_ratio) ratio.add(sums, 0, a.log_probs[t] - a.old_log_probs[t]);
      if (needs_statistic) statistic.add(sums, 1, a.old_log_probs[t] - a.rollout_log_probs[t]);
    }
#pragma unroll
    for (int lanes = 1; lanes < 32; lanes *= 2) n += shfl_xor(n, lanes);
    if (threadIdx.x % 32 == 0) counts[threadIdx.x / 32] = n;
    ratio.store(sums, 0);
    statistic.store(sums, 1);
    __syncthreads();
    if (threadIdx.x == 0) {
      n = 0;
#pragma unroll 1
      for (int warp = 0; warp < 16; ++warp) n += counts[warp];
      store_statistics(a, c, i, n, sums.total(0), sums.total(1));
    }
    __syncthreads();
  }
}

// The sum over a block of 1024 threads, in every thread.
RLK_DEVICE long long sum_of_block(long long x, long long* warps) {
#pragma unroll
  for (int lanes = 1; lanes < 32; lanes *= 2) x += shfl_xor(x, lanes);
  if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = x;
  __syncthreads();
  x = 0;
#pragma unroll 1
  for (int warp = 0; warp < 32; ++warp) x += warps[warp];
  __syncthreads();
  return x;
}

// One block: weights of all sequences, a thread a group.
extern "C" __global__ void __launch_bounds__(1024)
    rlk_ppo_loss_fwd_weigh(const __grid_constant__ Args a) {
  __shared__ long long warps[32];
  long long tokens = 0, valid = 0;
#pragma unroll 1
  for (Int64 i = threadIdx.x; i < a.num_sequences; i += 1024) {
    tokens += a.sequence_tokens[i];
    valid += a.sequence_tokens[i] > 0;
  }
  tokens = sum_of_block(tokens, warps);
  valid = sum_of_block(valid, warps);
  if (threadIdx.x == 0) a.counts[kCountSequences] = valid;
  const LossCounts n = global_counts(a.reductions, {tokens, a.num_sequences, valid, a.num_groups});
#pragma unroll 1
  for (Int64 g = threadIdx.x; g < a.num_groups; g += 1024) {
    const Int64 first = first_of_group(a, g), last = first_of_group(a, g + 1);
    long long in_group = 0;
#pragma unroll 1
    for (Int64 i = first; i < last; ++i) in_group += a.sequence_tokens[i];
#pragma unroll 1
    for (Int64 i = first; i < last; ++i) weigh_sequence(a, n, i, in_group);
  }
}

// The sequence of a token: the last that starts at or before it.
RLK_DEVICE Int64 sequence_of(const Args& a, Int64 token) {
  if (!a.starts) {
    // 64-bit division is some 70 instructions.
    if (a.num_tokens <= 0x7fffffff) {
      return static_cast<unsigned>(token) / static_cast<unsigned>(a.length);
    }
    return token / a.length;
  }
  Int64 low = 0, high = a.num_sequences;
#pragma unroll 1
  while (high - low > 1) {
    const Int64 middle = (low + high) / 2;
    if (a.starts[middle] <= token) {
      low = middle;
    } else {
      high = middle;
    }
  }
  return low;
}

// What the tokens of a thread add up to. Counts are of the warp: lane i has count i.
struct Totals {
  ExactLane<kTermBits> term, policy, absolute;
  ExactLane<kMetricBits> ratio, ratio_squared, log_ratio, k3, correction, correction_squared,
      log_correction, kl, entropy;
  int count = 0;
  float ratio_max = -infinity(), minus_ratio_min = -infinity(), log_correction_max = 0.0f;

  RLK_DEVICE void add_count(int row, bool mask) {
    const int n = __popc(__ballot_sync(kFullWarp, mask));
    count += threadIdx.x % 32 == row ? n : 0;
  }

  // Every lane of the warp, with `active` false where there is no token.
  RLK_DEVICE void add(ExactBlock<kNumSums>& block, const LossChoices& c, bool active,
                      const TokenResult& t) {
    add_count(kCountActive, active);
    add_count(kCountClipHigh, t.clip_high);
    add_count(kCountClipLow, t.clip_low);
    add_count(kCountOutside, t.outside);
    add_count(kCountClamped, t.clamped);
    add_count(kCountNonfinite, t.nonfinite);
    if (c.dual_clip) add_count(kCountDual, t.dual);
    if (c.correction) {
      add_count(kCountCorrectionHigh, t.correction_high);
      add_count(kCountCorrectionLow, t.correction_low);
      add_count(kCountRejected, t.rejected);
    }
    if (!active) return;
    term.add(block, kSumLoss, t.term);
    absolute.add(block, kSumAbs, magnitude(t.term));
    if (c.kl || c.entropy) policy.add(block, kSumPolicy, t.policy_term);
    ratio.add(block, kSumRatio, t.ratio);
    ratio_squared.add(block, kSumRatioSquared, t.ratio * t.ratio);
    log_ratio.add(block, kSumLogRatio, -t.log_ratio);
    k3.add(block, kSumK3, t.k3);
    if (c.correction) {
      const float size = magnitude(t.log_correction);
      correction.add(block, kSumCorrection, t.correction);
      correction_squared.add(block, kSumCorrectionSquared, t.correction * t.correction);
      log_correction.add(block, kSumLogCorrection, size);
      log_correction_max = size > log_correction_max ? size : log_correction_max;
    }
    if (c.kl) kl.add(block, kSumKl, t.kl);
    if (c.entropy) entropy.add(block, kSumEntropy, t.entropy);
    ratio_max = t.ratio > ratio_max ? t.ratio : ratio_max;
    minus_ratio_min = -t.ratio > minus_ratio_min ? -t.ratio : minus_ratio_min;
  }

  RLK_DEVICE void store(ExactBlock<kNumSums>& block, const LossChoices& c) const {
    term.store(block, kSumLoss);
    absolute.store(block, kSumAbs);
    policy.store(block, kSumPolicy);
    ratio.store(block, kSumRatio);
    ratio_squared.store(block, kSumRatioSquared);
    log_ratio.store(block, kSumLogRatio);
    k3.store(block, kSumK3);
    correction.store(block, kSumCorrection);
    correction_squared.store(block, kSumCorrectionSquared);
    log_correction.store(block, kSumLogCorrection);
    kl.store(block, kSumKl);
    entropy.store(block, kSumEntropy);
  }
};

RLK_DEVICE float max_of_warp(float x) {
#pragma unroll
  for (int lanes = 1; lanes < 32; lanes *= 2) x = max_f32(x, shfl_xor(x, lanes));
  return x;
}

// A token a thread and turn; any number of blocks.
extern "C" __global__ void __launch_bounds__(256)
    rlk_ppo_loss_fwd_main(const __grid_constant__ Args a) {
  __shared__ ExactBlock<kNumSums> block;
  __shared__ int counts[8][kNumCounts];
  __shared__ float extremes[8][kNumExtremes];
  const LossChoices c = choices(a);
  const LossValues v = a.values;
  block.clear();
  Totals totals;
#pragma unroll 1
  for (Int64 first = blockIdx.x * Int64{256}; first < a.num_tokens;
       first += gridDim.x * Int64{256}) {
    const Int64 t = first + threadIdx.x;
    TokenInput in{};
    in.active = t < a.num_tokens && is_active(a, t);
    // What an inactive token holds is not even read.
    if (in.active) {
      const Int64 i = sequence_of(a, t);
      in.log_prob = a.log_probs[t];
      in.old = a.old_log_probs[t];
      in.advantage = a.advantages[a.advantage_is_of_sequence ? i : t];
      if (c.correction) in.rollout = a.rollout_log_probs[t];
      if (c.kl) in.ref = a.ref_log_probs[t];
      if (c.entropy) in.entropy = a.entropy[t];
      in.weight = a.sequence_weight[i];
      if (c.kl) in.kl_weight = a.sequence_kl_weight[i];
      if (c.policy == kGspo) in.sequence_log_ratio = a.sequence_log_ratio[i];
      if (c.correction && c.level != kTokenLevel) in.sequence_statistic = a.sequence_statistic[i];
      if (a.weights && !a.weight_is_of_sequence) in.weight = in.kl_weight = a.weights[t];
    }
    const TokenResult result = token_loss(c, v, in);
    totals.add(block, c, in.active, result);
    if (a.grad && t < a.num_tokens) a.grad[t] = result.grad;
    if (a.grad_entropy && t < a.num_tokens) a.grad_entropy[t] = result.grad_entropy;
  }
  totals.store(block, c);
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  if (lane < kNumCounts) counts[warp][lane] = totals.count;
  const float most[] = {max_of_warp(totals.ratio_max), max_of_warp(totals.minus_ratio_min),
                        max_of_warp(totals.log_correction_max)};
  if (lane == 0) {
    extremes[warp][kRatioMax] = most[0];
    extremes[warp][kRatioMin] = most[1];
    extremes[warp][kLogCorrectionMax] = most[2];
  }
  __syncthreads();
  PpoLossPartial& to = a.partials[blockIdx.x];
  if (threadIdx.x < kNumSums) {
    const int row = threadIdx.x;
    const bool is_policy = row == kSumPolicy && !(c.kl || c.entropy);
    const ExactSum sum = block.total(is_policy ? static_cast<int>(kSumLoss) : row);
    to.sum_low[row] = sum.low;
    to.sum_high[row] = sum.high;
    to.sum_special[row] = sum.special;
  } else if (warp == 1 && lane < kNumCounts) {
    long long n = 0;
    for (int w = 0; w < 8; ++w) n += counts[w][lane];
    to.counts[lane] = n;
  } else if (warp == 2 && lane < kNumExtremes) {
    float x = extremes[0][lane];
    for (int w = 1; w < 8; ++w) x = max_f32(x, extremes[w][lane]);
    to.extremes[lane] = x;
  }
}

RLK_DEVICE void add_of_warp(ExactSum& sum) {
#pragma unroll
  for (int lanes = 1; lanes < 32; lanes *= 2) {
    const ExactSum other{
        static_cast<unsigned long long>(shfl_xor(static_cast<long long>(sum.low), lanes)),
        shfl_xor(sum.high, lanes), shfl_xor(sum.special, lanes)};
    add(sum, other);
  }
}

// One block of 1024 threads, a warp a sum, count or extreme: the loss and its metrics.
extern "C" __global__ void __launch_bounds__(1024)
    rlk_ppo_loss_fwd_finish(const __grid_constant__ Args a) {
  static_assert(kNumSums + kNumCounts + kNumExtremes <= 32);
  __shared__ long long counts[kNumCounts];
  __shared__ float extremes[kNumExtremes];
  const int lane = threadIdx.x % 32, row = threadIdx.x / 32;
  const int count = row - kNumSums, extreme = count - kNumCounts;
  if (row < kNumSums) {
    ExactSum sum{0, 0, 0};
#pragma unroll 1
    for (Int64 i = lane; i < a.num_items; i += 32) {
      const PpoLossPartial& p = a.partials[i];
      add(sum, {p.sum_low[row], p.sum_high[row], p.sum_special[row]});
    }
    add_of_warp(sum);
    if (lane == 0) {
      store_exact(a.exact + 2 * row, sum);
      const float value = exact_value(sum, row < kNumTermSums ? kTermBits : kMetricBits);
      (row == 0 ? *a.loss : a.figures[row - 1]) = value;
    }
  } else if (count < kNumCounts) {
    long long n = 0;
#pragma unroll 1
    for (Int64 i = lane; i < a.num_items; i += 32) n += a.partials[i].counts[count];
#pragma unroll
    for (int lanes = 1; lanes < 32; lanes *= 2) n += shfl_xor(n, lanes);
    if (lane == 0) counts[count] = count == kCountSequences ? a.counts[kCountSequences] : n;
  } else if (extreme < kNumExtremes) {
    float x = extreme == kLogCorrectionMax ? 0.0f : -infinity();
#pragma unroll 1
    for (Int64 i = lane; i < a.num_items; i += 32) x = max_f32(x, a.partials[i].extremes[extreme]);
    x = max_of_warp(x);
    if (lane == 0) extremes[extreme] = x;
  }
  __syncthreads();
  if (threadIdx.x == 0) finish_figures(counts, extremes, a.counts, a.figures);
}

}  // namespace rlk
