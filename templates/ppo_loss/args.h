// SPDX-License-Identifier: Apache-2.0
// What ppo_loss's kernels, on the CPU and on CUDA, and their host code agree on. Included by
// kernels, which have no other headers than templates.
#pragma once

#include "common/loss/options.h"

namespace rlk {

struct DeviceError;

// Rows of PpoLossArgs::exact and of float_metrics; the first kNumTermSums have kTermBits.
enum PpoLossSum : int {
  kSumLoss,
  kSumPolicy,
  kSumAbs,
  kSumKlTerm,
  kSumRatio,
  kSumRatioSquared,
  kSumLogRatio,
  kSumK3,
  kSumCorrection,
  kSumCorrectionSquared,
  kSumLogCorrection,
  kSumKl,
  kSumEntropy,
  kNumSums,
};
constexpr int kNumTermSums = 4;

enum PpoLossCount : int {
  kCountActive,
  kCountSequences,
  kCountClipHigh,
  kCountClipLow,
  kCountDual,
  kCountOutside,
  kCountClamped,
  kCountCorrectionHigh,
  kCountCorrectionLow,
  kCountRejected,
  kCountNonfinite,
  kNumCounts,
};

enum PpoLossExtreme : int { kRatioMax, kRatioMin, kLogCorrectionMax, kNumExtremes };

// float_metrics: the sums but the loss itself, the extremes, clip_ratio.
constexpr int kNumFloatMetrics = kNumSums - 1 + kNumExtremes + 1;

// What the means of a sequence are of, summed over its tokens.
enum PpoLossMean : int { kMeanOfLogRatio, kMeanOfStatistic, kMeanOfAdvantage, kNumMeans };
// In the place of these: the derivative through the mean of log-ratios.
constexpr int kSlope = 0;

// What the tokens of a sequence that one rank holds add up to, as integers: whole sequences are
// sums of these, however they are cut.
struct PpoLossPiece {
  long long tokens, left;  // active; active and in the means
  unsigned long long sum_low[kNumMeans];
  long long sum_high[kNumMeans];
  long long sum_special[kNumMeans];
};

// Counts over all ranks, as they give each.
enum PpoLossTotal : int { kTotalTokens, kTotalSequences, kTotalValid, kTotalGroups, kNumTotals };

// What some of the tokens add up to.
struct PpoLossPartial {
  unsigned long long sum_low[kNumSums];
  long long sum_high[kNumSums];
  long long sum_special[kNumSums];
  long long counts[kNumCounts];
  float extremes[kNumExtremes];  // the minimum negated
};

// CUDA: what the blocks of fwd_main add up to, each by atomics, in any order.
struct PpoLossTally {
  unsigned long long limbs[kNumSums][4];  // 32 bits each, as in common/cuda/exact_sum.cuh
  unsigned special[kNumSums];
  unsigned extremes[kNumExtremes];  // in the order of the numbers; 0: none
  unsigned long long counts[kNumCounts];
  unsigned blocks_done;
};

// Every array is dense. Tokens of sequence i are [starts[i], starts[i + 1]), or
// [i * length, (i + 1) * length) where starts is null.
struct PpoLossArgs {
  long long num_tokens, num_sequences, length;
  const long long* starts;
  const unsigned char* mask;  // or null: all are active
  const float *log_probs, *old_log_probs;
  const float* advantages;
  long long advantage_is_of_sequence;                        // advantages: [num_sequences]
  const float *rollout_log_probs, *ref_log_probs, *entropy;  // with their choices
  const float* importance_weights;                           // likewise
  long long importance_is_of_sequence;

  LossChoices choices;  // read where the constant is -1
  LossValues values;
  LossReductions reductions;
  const long long* group_starts;  // [num_groups + 1] sequences; null: group_size each
  long long num_groups, group_size;
  const float* weights;  // in place of reductions, or null
  long long weight_is_of_sequence;

  float* loss;
  float* grad;           // [num_tokens]
  float* grad_entropy;   // [num_tokens] or null
  long long* counts;     // [kNumCounts]
  float* float_metrics;  // [kNumFloatMetrics]
  long long* exact;      // [kNumSums][2]

  // Between the steps, one value a sequence.
  long long* sequence_tokens;
  float *sequence_weight, *sequence_kl_weight;
  float *sequence_log_ratio, *sequence_statistic, *sequence_advantage;
  float* sequence_grad;  // with kSequenceRatio
  // Where a batch lies on several ranks, else null.
  PpoLossPiece* own_pieces;    // [num_sequences], written by fwd_count
  const PpoLossPiece* pieces;  // [num_pieces][num_sequences], of each rank, in place of the tokens
  PpoLossPiece* own_slopes;    // likewise of fwd_slope: kSlope alone
  const PpoLossPiece* slopes;
  long long num_pieces;
  const long long* totals;    // [kNumTotals]
  PpoLossPartial* own_total;  // written by fwd_finish in place of loss, counts, ...

  // CUDA.
  PpoLossTally* tally;       // cleared by fwd_count
  long long weighs_in_main;  // fwd_main makes the weights, fwd_weigh is left out
  long long has_groups;      // every array of tokens lies so that four are read at once

  // CPU: one an item of fwd_main. CUDA: one a rank, for fwd_finish.
  PpoLossPartial* partials;
  long long num_items;     // CUDA: blocks of fwd_main too
  const long long* items;  // CPU: [num_items + 1] first tokens; no item leaves its sequence
  const long long* item_sequences;
  DeviceError* error;  // CUDA
  const char* op;      // for `error`
};

// CUDA: a block of fwd_main has tiles of this many tokens, four a thread, and this many at most, as
// a thread counts in 16 bits.
constexpr long long kPpoLossTile = 1024, kPpoLossMostTiles = 16383;
// CUDA: most sequences whose weights fwd_main makes.
constexpr long long kPpoLossMostWeighed = 1024;

// CUDA: makes an array dense, as kind.
struct PpoLossPack {
  enum Kind : int { kFloats, kBytes, kIntegers };  // fp32; a mask's 0 and 1; int64
  const void* from;
  void* to;
  int type;  // a TypeCode
  int to_kind;
  long long rows, cols, row_stride, col_stride;
};

struct PpoLossBackwardArgs {
  long long num_tokens;
  const float* saved;     // derivative with respect to each token's value
  const float* upstream;  // one number
  void* grad;             // of type kX; may be saved itself where that is fp32
};

// CPU entry points: items [begin, end).
using PpoLossCpuStep = void (*)(const void* args, long long begin, long long end);

}  // namespace rlk
