// SPDX-License-Identifier: Apache-2.0
// Entry points of ppo_loss's forward on CUDA; see kernel.cuh.
#pragma once

#include "common/cuda/device_error.cuh"
#include "common/cuda/element.cuh"
#include "common/cuda/exact_sum.cuh"
#include "ppo_loss/metrics.h"
#include "ppo_loss/tokens.cuh"

namespace rlk {

using Args = PpoLossArgs;
using CountBlock = ExactBlock<kNumMeans>;

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

RLK_DEVICE int num_nonzero_bytes(unsigned x) {
  return __popc((((x & 0x7f7f7f7fu) + 0x7f7f7f7fu) | x) & 0x80808080u);
}

// Active tokens of [first, last): this thread's share of a block of 512.
RLK_DEVICE long long count_active(const Args& a, Int64 first, Int64 last) {
  if (!a.mask) return threadIdx.x == 0 ? max(last - first, Int64{0}) : 0;
  const auto before = reinterpret_cast<unsigned long long>(a.mask + first) % 16;
  const Int64 aligned = min(first + static_cast<Int64>((16 - before) % 16), last);
  const Int64 whole = aligned + (last - aligned) / 16 * 16;
  const auto at = [&](Int64 begin) { return begin + threadIdx.x; };
  long long n = 0;
  if (at(first) < aligned) n += a.mask[at(first)] != 0;
  if (at(whole) < last) n += a.mask[at(whole)] != 0;
#pragma unroll 2
  for (Int64 t = aligned + 16 * threadIdx.x; t < whole; t += 16 * 512) {
    const uint4 x = *reinterpret_cast<const uint4*>(a.mask + t);
    n += num_nonzero_bytes(x.x) + num_nonzero_bytes(x.y) + num_nonzero_bytes(x.z) +
         num_nonzero_bytes(x.w);
  }
  return n;
}

// A block a sequence: its active tokens, and the sums that its statistics need. Two blocks at once:
// left to itself the compiler aims at three and spills on sm_120.
extern "C" __global__ void __launch_bounds__(512, 2)
    rlk_ppo_loss_fwd_count(const __grid_constant__ Args a) {
  __shared__ CountBlock sums;
  __shared__ long long counts[16], counts_left[16];
  const LossChoices c = choices(a);
  const LossValues v = a.values;
  const bool needs_ratio = needs_mean(a, c, kMeanOfLogRatio);
  const bool needs_statistic = needs_mean(a, c, kMeanOfStatistic);
  const bool needs_advantage = needs_mean(a, c, kMeanOfAdvantage);
  const bool needs_means = needs_ratio || needs_statistic || needs_advantage;
#pragma unroll 1
  for (Int64 i = blockIdx.x; i < a.num_sequences; i += gridDim.x) {
    if (a.pieces) {
      if (threadIdx.x == 0) {
        const SequenceSums of = joined(a, a.pieces, i);
        a.sequence_tokens[i] = of.tokens;
        store_means(a, c, i, of);
      }
      continue;
    }
    if (needs_means) sums.clear();
    ExactLane<kTermBits> ratio, statistic, advantage;
    const Int64 first = start_of(a, i), last = start_of(a, i + 1);
    long long n = count_active(a, first, last), left = n;
#pragma unroll 1
    for (Int64 t = first + threadIdx.x; needs_means && t < last; t += 512) {
      if (!is_active(a, t)) continue;
      const float old = a.old_log_probs[t];
      if (needs_statistic) statistic.add(sums, kMeanOfStatistic, old - a.rollout_log_probs[t]);
      if (c.leaves && is_rejected(v, old - a.rollout_log_probs[t])) {
        --left;
        continue;
      }
      if (needs_ratio) ratio.add(sums, kMeanOfLogRatio, a.log_probs[t] - old);
      if (needs_advantage) advantage.add(sums, kMeanOfAdvantage, a.advantages[t]);
    }
#pragma unroll
    for (int lanes = 1; lanes < 32; lanes *= 2) {
      n += shfl_xor(n, lanes);
      left += shfl_xor(left, lanes);
    }
    if (threadIdx.x % 32 == 0) {
      counts[threadIdx.x / 32] = n;
      counts_left[threadIdx.x / 32] = left;
    }
    if (needs_means) {
      ratio.store(sums, kMeanOfLogRatio);
      statistic.store(sums, kMeanOfStatistic);
      advantage.store(sums, kMeanOfAdvantage);
    }
    __syncthreads();
    if (threadIdx.x == 0) {
      n = left = 0;
#pragma unroll 1
      for (int warp = 0; warp < 16; ++warp) {
        n += counts[warp];
        left += counts_left[warp];
      }
      a.sequence_tokens[i] = n;
      SequenceSums of{n, left, {}};
      if (needs_means) {
        for (int mean = 0; mean < kNumMeans; ++mean) of.sums[mean] = sums.total(mean);
        store_means(a, c, i, of);
      }
      if (a.own_pieces) store_piece(a.own_pieces[i], of);
      if (a.starts) {
        expect_part(*a.error, a.op, DeviceError::kBadSequence, a.starts, i, a.num_sequences,
                    a.num_tokens);
      }
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
  const LossCounts n = global_counts(a, {tokens, a.num_sequences, valid, a.num_groups});
#pragma unroll 1
  for (Int64 g = threadIdx.x; g < a.num_groups; g += 1024) {
    if (a.group_starts) {
      expect_part(*a.error, a.op, DeviceError::kBadGroup, a.group_starts, g, a.num_groups,
                  a.num_sequences);
    }
    const Int64 first = first_of_group(a, g), last = first_of_group(a, g + 1);
    long long in_group = 0;
#pragma unroll 1
    for (Int64 i = first; i < last; ++i) in_group += a.sequence_tokens[i];
#pragma unroll 1
    for (Int64 i = first; i < last; ++i) weigh_sequence(a, n, i, in_group);
  }
}

// A block a sequence, where the derivative goes through the mean of its log-ratios.
extern "C" __global__ void __launch_bounds__(256)
    rlk_ppo_loss_fwd_slope(const __grid_constant__ Args a) {
  __shared__ ExactBlock<1> sums;
  __shared__ unsigned counts[8];
  const LossChoices c = choices(a);
  if (c.ratio != kSequenceRatio) return;
  const LossValues v = a.values;
#pragma unroll 1
  for (Int64 i = blockIdx.x; i < a.num_sequences; i += gridDim.x) {
    if (a.slopes) {
      if (threadIdx.x == 0) store_sequence_grad(a, i, joined(a, a.slopes, i));
      continue;
    }
    sums.clear();
    ExactLane<kTermBits> slope;
    unsigned left = 0;
    TokenInput shared_in{};
    enter_sequence(a, c, i, shared_in);
    const Int64 last = start_of(a, i + 1);
#pragma unroll 1
    for (Int64 t = start_of(a, i) + threadIdx.x; t < last; t += 256) {
      if (!is_active(a, t)) continue;
      TokenInput in = shared_in;
      in.active = true;
      in.log_prob = a.log_probs[t];
      read_token(a, c, t, in);
      const TokenResult result = token_loss(c, v, in);
      slope.add(sums, 0, result.sequence_grad);
      left += c.leaves && result.rejected ? 0 : 1;
    }
    __syncwarp();
    slope.store(sums, 0);
    left = __reduce_add_sync(kFullWarp, left);
    if (threadIdx.x % 32 == 0) counts[threadIdx.x / 32] = left;
    __syncthreads();
    if (threadIdx.x == 0) {
      SequenceSums of{0, 0, {sums.total(kSlope)}};
      for (int warp = 0; warp < 8; ++warp) of.left += counts[warp];
      store_sequence_grad(a, i, of);
      if (a.own_slopes) store_piece(a.own_slopes[i], of);
    }
    __syncthreads();
  }
}

// What the tokens of a thread add up to: at most kPpoLossMostTurns, for counts of 16 bits.
struct Totals {
  ExactLane<kTermBits> term, policy, absolute, kl_term;
  ExactLane<kMetricBits> ratio, ratio_squared, log_ratio, k3, correction, correction_squared,
      log_correction, kl, entropy;
  unsigned pairs[(kNumCounts + 1) / 2] = {};
  float ratio_max = -infinity(), minus_ratio_min = -infinity(), log_correction_max = 0.0f;

  RLK_DEVICE void add_count(int row, bool mask) {
    pairs[row / 2] += mask ? 1u << (16 * (row % 2)) : 0u;
  }
  RLK_DEVICE unsigned count(int row) const { return pairs[row / 2] >> (16 * (row % 2)) & 0xffffu; }

  // Calls each(lane, row, x) for every sum and its terms.
  template <class Each>
  RLK_DEVICE void for_each_sum(const LossChoices& c, const TokenResult& t, Each each) {
    each(term, kSumLoss, t.term);
    each(absolute, kSumAbs, magnitude(t.term));
    if (c.kl || c.entropy) each(policy, kSumPolicy, t.policy_term);
    each(ratio, kSumRatio, t.ratio);
    each(ratio_squared, kSumRatioSquared, t.ratio * t.ratio);
    each(log_ratio, kSumLogRatio, -t.log_ratio);
    each(k3, kSumK3, t.k3);
    if (c.correction) {
      each(correction, kSumCorrection, t.correction);
      each(correction_squared, kSumCorrectionSquared, t.correction * t.correction);
      each(log_correction, kSumLogCorrection, magnitude(t.log_correction));
    }
    if (c.kl) each(kl, kSumKl, t.kl);
    if (c.kl) each(kl_term, kSumKlTerm, t.kl_term);
    if (c.entropy) each(entropy, kSumEntropy, t.entropy);
  }

  // An active token.
  RLK_DEVICE void add(ExactBlock<kNumSums>& block, const LossChoices& c, const TokenResult& t) {
    // One test for all sums: large terms are rare.
    bool large = false;
    for_each_sum(c, t, [&](auto&, int, float x) { large = large | is_large_term(magnitude(x)); });
    if (large) {
      for_each_sum(c, t, [&](auto& lane, int row, float x) { lane.add(block, row, x); });
    } else {
      for_each_sum(c, t, [](auto& lane, int, float x) { lane.add_small(x); });
    }
    if (c.correction) {
      const float size = magnitude(t.log_correction);
      log_correction_max = size > log_correction_max ? size : log_correction_max;
      add_count(kCountCorrectionHigh, t.correction_high);
      add_count(kCountCorrectionLow, t.correction_low);
      add_count(kCountRejected, t.rejected);
    }
    ratio_max = t.ratio > ratio_max ? t.ratio : ratio_max;
    minus_ratio_min = -t.ratio > minus_ratio_min ? -t.ratio : minus_ratio_min;
    add_count(kCountActive, true);
    add_count(kCountClipHigh, t.clip_high);
    add_count(kCountClipLow, t.clip_low);
    add_count(kCountOutside, t.outside);
    add_count(kCountClamped, t.clamped);
    add_count(kCountNonfinite, t.nonfinite);
    if (c.dual_clip) add_count(kCountDual, t.dual);
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
    kl_term.store(block, kSumKlTerm);
    entropy.store(block, kSumEntropy);
  }
};

RLK_DEVICE float max_of_warp(float x) {
#pragma unroll
  for (int lanes = 1; lanes < 32; lanes *= 2) x = max_f32(x, shfl_xor(x, lanes));
  return x;
}

// A block has neighbouring tokens, a thread every 256th of them; any number of blocks.
extern "C" __global__ void __launch_bounds__(256)
    rlk_ppo_loss_fwd_main(const __grid_constant__ Args a) {
  __shared__ ExactBlock<kNumSums> block;
  __shared__ int counts[8][kNumCounts];
  __shared__ float extremes[8][kNumExtremes];
  const LossChoices c = choices(a);
  const LossValues v = a.values;
  block.clear();
  Totals totals;
  const Int64 range = ceil_div(ceil_div(a.num_tokens, 256), a.num_items) * 256;
  const Int64 begin = blockIdx.x * range, end = min(begin + range, a.num_tokens);
  Int64 t = begin + threadIdx.x;
  if (t < end) {
    TokenInput shared_in{};
    Int64 i = sequence_of(a, t), last = start_of(a, i + 1);
    const auto enter = [&] {
      enter_sequence(a, c, i, shared_in);
      if (c.ratio == kSequenceRatio) shared_in.sequence_grad = a.sequence_grad[i];
    };
    enter();
    bool active = is_active(a, t);
#pragma unroll 1
    for (; t < end; t += 256) {
      // Known a turn ahead: the other loads wait for it.
      const bool next_active = t + 256 < end && is_active(a, t + 256);
      if (t >= last && i + 1 < a.num_sequences) {
#pragma unroll 1
        do {
          last = start_of(a, ++i + 1);
        } while (t >= last && i + 1 < a.num_sequences);
        enter();
      }
      TokenInput in = shared_in;
      in.active = active;
      active = next_active;
      float grad = 0.0f, grad_entropy = 0.0f;
      // What an inactive token holds is not even read.
      if (in.active) {
        in.log_prob = a.log_probs[t];
        read_token(a, c, t, in);
        const TokenResult result = token_loss(c, v, in);
        totals.add(block, c, result);
        grad = result.grad;
        grad_entropy = result.grad_entropy;
      }
      if (a.grad) a.grad[t] = grad;
      if (a.grad_entropy) a.grad_entropy[t] = grad_entropy;
    }
  }
  __syncwarp();
  totals.store(block, c);
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
#pragma unroll
  for (int row = 0; row < kNumCounts; ++row) {
    const unsigned n = __reduce_add_sync(kFullWarp, totals.count(row));
    if (lane == 0) counts[warp][row] = static_cast<int>(n);
  }
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
    store_sum(to, row, sum);
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

// One block of 1024 threads, a warp a sum, count or extreme: the loss and its metrics, or what
// these are made of.
extern "C" __global__ void __launch_bounds__(1024)
    rlk_ppo_loss_fwd_finish(const __grid_constant__ Args a) {
  static_assert(kNumSums + kNumCounts + kNumExtremes <= 32);
  __shared__ long long counts[kNumCounts];
  __shared__ float extremes[kNumExtremes];
  const int lane = threadIdx.x % 32, row = threadIdx.x / 32;
  const int count = row - kNumSums, extreme = count - kNumCounts;
  if (row < kNumSums) {
    ExactSum sum{0, 0, 0};
#pragma unroll 4
    for (Int64 i = lane; i < a.num_items; i += 32) {
      const PpoLossPartial& p = a.partials[i];
      add(sum, {p.sum_low[row], p.sum_high[row], p.sum_special[row]});
    }
    add_of_warp(sum);
    if (lane == 0 && a.own_total) {
      store_sum(*a.own_total, row, sum);
    } else if (lane == 0) {
      store_exact(a.exact + 2 * row, sum);
      const float value = exact_value(sum, row < kNumTermSums ? kTermBits : kMetricBits);
      (row == 0 ? *a.loss : a.float_metrics[row - 1]) = value;
    }
  } else if (count < kNumCounts) {
    long long n = 0;
#pragma unroll 4
    for (Int64 i = lane; i < a.num_items; i += 32) n += a.partials[i].counts[count];
#pragma unroll
    for (int lanes = 1; lanes < 32; lanes *= 2) n += shfl_xor(n, lanes);
    if (count == kCountSequences) n = a.totals ? a.totals[kTotalValid] : a.counts[count];
    if (lane == 0) (a.own_total ? a.own_total->counts : counts)[count] = n;
  } else if (extreme < kNumExtremes) {
    float x = extreme == kLogCorrectionMax ? 0.0f : -infinity();
#pragma unroll 1
    for (Int64 i = lane; i < a.num_items; i += 32) x = max_f32(x, a.partials[i].extremes[extreme]);
    x = max_of_warp(x);
    if (lane == 0) (a.own_total ? a.own_total->extremes : extremes)[extreme] = x;
  }
  __syncthreads();
  if (threadIdx.x == 0 && !a.own_total) finish_metrics(counts, extremes, a.counts, a.float_metrics);
}

}  // namespace rlk
