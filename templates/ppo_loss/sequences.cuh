// SPDX-License-Identifier: Apache-2.0
// What ppo_loss's forward on CUDA needs of whole sequences, and arrays made dense; see kernel.cuh.
#pragma once

#include "common/cuda/element.cuh"
#include "common/cuda/exact_sum.cuh"
#include "common/cuda/overlap.cuh"
#include "ppo_loss/metrics.h"
#include "ppo_loss/tokens.cuh"

namespace rlk {

using Args = PpoLossArgs;
using CountBlock = ExactBlock<kNumMeans>;
constexpr int kTallyWords = sizeof(PpoLossTally) / sizeof(unsigned);

// Element `row`, `col` of an array of any type and strides as a dense one.
extern "C" __global__ void rlk_ppo_loss_fwd_pack(const __grid_constant__ PpoLossPack p) {
  wait_for_last_launch();
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
  wait_for_last_launch();
  // fwd_main comes after all of this launch.
  for (int word = threadIdx.x; blockIdx.x == 0 && a.tally && word < kTallyWords; word += 512) {
    reinterpret_cast<unsigned*>(a.tally)[word] = 0;
  }
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

// The sum over a block, in every thread.
RLK_DEVICE long long sum_of_block(long long x, long long* warps) {
#pragma unroll
  for (int lanes = 1; lanes < 32; lanes *= 2) x += shfl_xor(x, lanes);
  if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = x;
  __syncthreads();
  x = 0;
#pragma unroll 1
  for (int warp = 0; warp < static_cast<int>(blockDim.x / 32); ++warp) x += warps[warp];
  __syncthreads();
  return x;
}

// The counts of all sequences, by a block, in every thread.
RLK_DEVICE LossCounts count_all(const Args& a, long long* warps) {
  long long tokens = 0, valid = 0;
#pragma unroll 1
  for (Int64 i = threadIdx.x; i < a.num_sequences; i += blockDim.x) {
    const long long n = a.sequence_tokens[i];
    tokens += n;
    valid += n > 0;
  }
  tokens = sum_of_block(tokens, warps);
  valid = sum_of_block(valid, warps);
  return {tokens, a.num_sequences, valid, a.num_groups};
}

// One block: weights of all sequences, a thread a group.
extern "C" __global__ void __launch_bounds__(1024)
    rlk_ppo_loss_fwd_weigh(const __grid_constant__ Args a) {
  __shared__ long long warps[32];
  wait_for_last_launch();
  const LossCounts own = count_all(a, warps);
  if (threadIdx.x == 0) a.counts[kCountSequences] = own.valid;
  const LossCounts n = global_counts(a, own);
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
  wait_for_last_launch();
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

}  // namespace rlk
