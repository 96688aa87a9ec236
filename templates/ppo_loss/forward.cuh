// SPDX-License-Identifier: Apache-2.0
// Entry points of ppo_loss's forward on CUDA; see kernel.cuh.
#pragma once

#include "common/cuda/device_error.cuh"
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
RLK_DEVICE unsigned active_of_group(const Args& a, Int64 t) {
  if (!a.mask) return (1u << kGroup) - 1;
  const unsigned x = *reinterpret_cast<const Group<kGroup>::Bytes*>(a.mask + t);
  unsigned active = 0;
#pragma unroll
  for (int k = 0; k < kGroup; ++k) active |= (x >> (8 * k) & 0xff) != 0 ? 1u << k : 0u;
  return active;
}

// Neighbouring tokens of a sequence. Returns which of them are left to be added, by bit: those out
// of the ordinary.
RLK_DEVICE unsigned add_group(const Args& a, const LossChoices& c, const LossValues& v,
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
