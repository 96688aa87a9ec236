// SPDX-License-Identifier: Apache-2.0
// ppo_loss's loss, derivatives and metrics on CUDA; see kernel.cuh.
#pragma once

#include "common/cuda/device_error.cuh"
#include "common/cuda/exact_sum.cuh"
#include "common/cuda/overlap.cuh"
#include "ppo_loss/metrics.h"
#include "ppo_loss/sequences.cuh"
#include "ppo_loss/token_sums.cuh"

namespace rlk {

// Weights of all sequences, where fwd_main makes them.
struct MadeWeights {
  float own[kPpoLossMostWeighed], kl[kPpoLossMostWeighed];
};

// Returns how many sequences have an active token.
RLK_DEVICE long long make_weights(const Args& a, MadeWeights& made, long long* warps) {
  const LossCounts own = count_all(a, warps);
  const LossCounts n = global_counts(a, own);
#pragma unroll 1
  for (int i = threadIdx.x; i < static_cast<int>(a.num_sequences); i += blockDim.x) {
    const SequenceWeights w = weights_of_sequence(a, n, i, a.sequence_tokens[i], 0);
    made.own[i] = w.weight;
    made.kl[i] = w.kl_weight;
  }
  __syncthreads();
  return own.valid;
}

// A float as an integer in the same order, above 0.
RLK_DEVICE unsigned ordered(float x) {
  const unsigned bits = __float_as_uint(x);
  return bits >> 31 ? ~bits : bits | 0x80000000u;
}
RLK_DEVICE float from_ordered(unsigned x) {
  return __uint_as_float(x >> 31 ? x & 0x7fffffffu : ~x);
}

RLK_DEVICE void add_to_tally(PpoLossTally& to, int row, const ExactSum& sum) {
  const auto high = static_cast<unsigned long long>(sum.high);
  if ((sum.low | high) != 0) {
    atomicAdd(&to.limbs[row][0], sum.low & 0xffffffffu);
    atomicAdd(&to.limbs[row][1], sum.low >> 32);
    atomicAdd(&to.limbs[row][2], high & 0xffffffffu);
    atomicAdd(&to.limbs[row][3], static_cast<unsigned long long>(sum.high >> 32));
  }
  if (sum.special) atomicOr(&to.special[row], static_cast<unsigned>(sum.special));
}

RLK_DEVICE void store_total(const Args& a, int row, const ExactSum& sum) {
  if (a.own_total) return store_sum(*a.own_total, row, sum);
  store_exact(a.exact + 2 * row, sum);
  const float value = exact_value(sum, row < kNumTermSums ? kTermBits : kMetricBits);
  (row == 0 ? *a.loss : a.float_metrics[row - 1]) = value;
}

// By the last block of fwd_main: what all have added, past L1, as it was added.
RLK_DEVICE void finish_tally(const Args& a, long long valid, long long* counts, float* extremes) {
  const PpoLossTally& from = *a.tally;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  if (threadIdx.x < kNumSums) {
    unsigned long long limbs[4];
    for (int i = 0; i < 4; ++i) limbs[i] = __ldcg(&from.limbs[threadIdx.x][i]);
    store_total(a, threadIdx.x, exact_limbs(limbs, __ldcg(&from.special[threadIdx.x])));
  } else if (warp == 1 && lane < kNumCounts) {
    long long n = static_cast<long long>(__ldcg(&from.counts[lane]));
    if (lane == kCountSequences) n = a.totals ? a.totals[kTotalValid] : valid;
    (a.own_total ? a.own_total->counts : counts)[lane] = n;
  } else if (warp == 2 && lane < kNumExtremes) {
    const unsigned x = __ldcg(&from.extremes[lane]);
    const float none = lane == kLogCorrectionMax ? 0.0f : -infinity();
    (a.own_total ? a.own_total->extremes : extremes)[lane] = x == 0 ? none : from_ordered(x);
  }
  __syncthreads();
  if (threadIdx.x == 0 && !a.own_total) finish_metrics(counts, extremes, a.counts, a.float_metrics);
}

// Any number of blocks, each with neighbouring tiles; the last one that ends makes the results.
extern "C" __global__ void __launch_bounds__(256, 2)
    rlk_ppo_loss_fwd_main(const __grid_constant__ Args a) {
  __shared__ ExactBlock<kNumSums> block;
  __shared__ MadeWeights made;
  __shared__ int counts[8][kNumCounts];
  __shared__ float extremes[8][kNumExtremes];
  __shared__ long long shared_counts[kNumCounts];
  __shared__ bool is_last;
  const LossChoices c = choices(a);
  const LossValues v = a.values;
  block.clear();
  wait_for_last_launch();
  long long valid = 0;
  if (a.weighs_in_main) valid = make_weights(a, made, shared_counts);
  Totals totals;
  const Int64 tiles = ceil_div(a.num_tokens, kPpoLossTile);
  const auto first_tile = [&](Int64 item) { return tiles * item / a.num_items; };
  const Int64 last_tile = first_tile(blockIdx.x + 1);
  const bool has_groups = kTakesGroups && a.has_groups;
  TokenInput shared_in{};
  Int64 i = -1, last = 0;  // the sequence of shared_in, and where it ends
  const auto enter = [&](Int64 t) {
    if (i >= 0 && (t < last || i + 1 >= a.num_sequences)) return;
    if (i < 0) {
      i = sequence_of(a, t);
      last = start_of(a, i + 1);
    }
#pragma unroll 1
    while (t >= last && i + 1 < a.num_sequences) last = start_of(a, ++i + 1);
    enter_sequence_unweighed(a, c, i, shared_in);
    shared_in.weight = a.weighs_in_main ? made.own[i] : a.sequence_weight[i];
    if (c.kl) shared_in.kl_weight = a.weighs_in_main ? made.kl[i] : a.sequence_kl_weight[i];
    if (c.ratio == kSequenceRatio) shared_in.sequence_grad = a.sequence_grad[i];
  };
  constexpr int kTurn = 256 * kGroup;
  const Int64 end = a.num_tokens;
#pragma unroll 1
  for (Int64 turn = first_tile(blockIdx.x) * kPpoLossTile; turn < last_tile * kPpoLossTile;
       turn += kTurn) {
    // Token k of the thread is t + k * stride.
    const int stride = has_groups ? 1 : 256;
    const Int64 t = turn + (has_groups ? kGroup : 1) * threadIdx.x;
    if (t >= end) break;
    float grad[kGroup] = {}, grad_entropy[kGroup] = {};
    unsigned left = (1u << kGroup) - 1;
    if (has_groups) {
      enter(t);
      if (t + kGroup <= last) left = add_group(a, c, v, shared_in, t, totals, grad, grad_entropy);
    }
#pragma unroll 1
    for (int k = 0; left >> k != 0; ++k) {
      const Int64 at = t + k * stride;
      // What an inactive token holds does not show.
      if ((left >> k & 1) == 0 || at >= end || !is_active(a, at)) continue;
      enter(at);
      TokenInput in = shared_in;
      in.active = true;
      in.log_prob = a.log_probs[at];
      read_token(a, c, at, in);
      const TokenResult result = token_loss(c, v, in);
      totals.add(block, c, result);
#pragma unroll
      for (int to = 0; to < kGroup; ++to) {
        if (to == k) grad[to] = result.grad;
        if (to == k) grad_entropy[to] = result.grad_entropy;
      }
    }
    if (has_groups && t + kGroup <= end) {
      if (a.grad) store_group(a.grad, t, grad);
      if (a.grad_entropy) store_group(a.grad_entropy, t, grad_entropy);
    } else {
#pragma unroll
      for (int k = 0; k < kGroup; ++k) {
        const Int64 at = t + k * stride;
        if (at < end && a.grad) a.grad[at] = grad[k];
        if (at < end && a.grad_entropy) a.grad_entropy[at] = grad_entropy[k];
      }
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
  PpoLossTally& tally = *a.tally;
  if (threadIdx.x < kNumSums) {
    const int row = threadIdx.x;
    const bool is_policy = row == kSumPolicy && !(c.kl || c.entropy);
    add_to_tally(tally, row, block.total(is_policy ? static_cast<int>(kSumLoss) : row));
  } else if (warp == 1 && lane < kNumCounts) {
    long long n = 0;
    for (int w = 0; w < 8; ++w) n += counts[w][lane];
    if (n != 0) atomicAdd(&tally.counts[lane], static_cast<unsigned long long>(n));
  } else if (warp == 2 && lane < kNumExtremes) {
    float x = extremes[0][lane];
    for (int w = 1; w < 8; ++w) x = max_f32(x, extremes[w][lane]);
    atomicMax(&tally.extremes[lane], ordered(x));
  }
  // Each thread's additions come before its fence, the fence before the barrier, the barrier before
  // the block's one addition to blocks_done: whoever finds all other blocks there finds what they
  // have added, once it has a fence of its own behind that. fwd_count, an earlier launch of the
  // stream, has cleared all of it, for each call and each replay of a graph anew.
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) is_last = atomicAdd(&tally.blocks_done, 1u) + 1 == gridDim.x;
  __syncthreads();
  if (!is_last) return;
  __threadfence();
  finish_tally(a, a.weighs_in_main ? valid : a.counts[kCountSequences], shared_counts, extremes[0]);
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

// One block of 1024 threads, a warp a sum, count or extreme: the loss and its metrics, from the
// partials of all ranks.
extern "C" __global__ void __launch_bounds__(1024)
    rlk_ppo_loss_fwd_finish(const __grid_constant__ Args a) {
  static_assert(kNumSums + kNumCounts + kNumExtremes <= 32);
  __shared__ long long counts[kNumCounts];
  __shared__ float extremes[kNumExtremes];
  const int lane = threadIdx.x % 32, row = threadIdx.x / 32;
  const int count = row - kNumSums, extreme = count - kNumCounts;
  wait_for_last_launch();
  if (row < kNumSums) {
    ExactSum sum{0, 0, 0};
#pragma unroll 4
    for (Int64 i = lane; i < a.num_items; i += 32) {
      const PpoLossPartial& p = a.partials[i];
      add(sum, {p.sum_low[row], p.sum_high[row], p.sum_special[row]});
    }
    add_of_warp(sum);
    if (lane == 0) store_total(a, row, sum);
  } else if (count < kNumCounts) {
    long long n = 0;
#pragma unroll 4
    for (Int64 i = lane; i < a.num_items; i += 32) n += a.partials[i].counts[count];
#pragma unroll
    for (int lanes = 1; lanes < 32; lanes *= 2) n += shfl_xor(n, lanes);
    if (count == kCountSequences) n = a.totals[kTotalValid];
    if (lane == 0) counts[count] = n;
  } else if (extreme < kNumExtremes) {
    float x = extreme == kLogCorrectionMax ? 0.0f : -infinity();
#pragma unroll 1
    for (Int64 i = lane; i < a.num_items; i += 32) x = max_f32(x, a.partials[i].extremes[extreme]);
    x = max_of_warp(x);
    if (lane == 0) extremes[extreme] = x;
  }
  __syncthreads();
  if (threadIdx.x == 0) finish_metrics(counts, extremes, a.counts, a.float_metrics);
}

}  // namespace rlk
