// SPDX-License-Identifier: Apache-2.0
// What a policy loss is made of: choices, which a template takes as constants, and values, which
// are arguments always. Host and templates agree on it, so this file includes nothing.
#pragma once

namespace rlk {

enum LossPolicy : long long { kPpo, kCispo, kSapo, kGpg };
// Whose ratio r is: the token's; the sequence's, exp of its mean log-ratio, with the derivative
// through that mean; the sequence's with the derivative of each token's own log-prob alone.
enum LossRatio : long long { kTokenRatio, kSequenceRatio, kSequenceTokenRatio };
// Where A < 0 the loss is at most -A c; the ratio is at most c before it is compared with the clip.
enum LossCap : long long { kNoCap, kLossCap, kRatioCap };
// rho: clamped to [low, high]; 0 outside; e^u of the token where the statistic is inside, else 0;
// given.
enum LossCorrection : long long { kNoCorrection, kTruncate, kMask, kBand, kGiven };
// Statistic of u = old - rollout: the token's, the sum or the mean over the sequence.
enum LossLevel : long long { kTokenLevel, kSequenceLevel, kGeometricLevel };
enum LossKl : long long { kNoKl, kKl1, kKlAbs, kKl2, kKl3 };
// Of the value; log p - ref, whatever the value; of the value times a ratio that is 1, but 0 where
// a clamp is active.
enum LossKlGradient : long long { kPathwise, kUnbiased, kImportance };
// What the KL term is multiplied by: nothing; r; exp(log p - old); exp(log p - rollout).
enum LossKlWeight : long long { kNoKlRatio, kPolicyRatio, kOwnRatio, kRolloutRatio };
enum LossReduction : long long {
  kTokenMean,
  kTokenSum,
  kSequenceMean,
  kSequenceMeanValid,
  kSeqMeanTokenSum,
  kSeqMeanTokenSumNorm,
  kSeqMeanTokenSumNormValid,
  kTokenSumOverL,
  kSequenceSum,
  kGroupMean,
};

struct LossChoices {
  long long policy;          // a LossPolicy
  long long ratio;           // a LossRatio
  long long mean_advantage;  // 1: the mean over the sequence in place of the token's
  long long dual_clip;       // a LossCap
  long long correction;      // a LossCorrection
  long long level;           // a LossLevel
  long long leaves;          // 1: tokens that the correction rejects are in no mean of the sequence
  long long kl;              // a LossKl
  long long kl_gradient;     // a LossKlGradient
  long long kl_weight;       // a LossKlWeight
  long long entropy;         // 1: an entropy bonus
};

// Of old - rollout, or of log_prob - rollout.
constexpr bool reads_rollout(const LossChoices& c) {
  const bool has_own_correction = c.correction != kNoCorrection && c.correction != kGiven;
  return has_own_correction || (c.kl != kNoKl && c.kl_weight == kRolloutRatio);
}

// Infinite bounds are no bounds.
struct LossValues {
  float log_ratio_low, log_ratio_high;        // clamp of the log-ratio
  float kl_log_ratio_low, kl_log_ratio_high;  // of that of the KL term's weight, but r
  float ratio_low, ratio_high;                // clip bounds
  float dual_ratio;                           // c, or delta
  float tau_positive, tau_negative;           // SAPO
  float correction_low, correction_high;
  float correction_clamp;         // of the statistic and u, both sides
  float correction_overflow_log;  // a statistic above it gives weight 0
  float kl_coef, kl_clamp, kl_output_clamp;
  float entropy_coef;
};

// A count over all micro-batches and ranks.
struct LossGlobal {
  const long long* at;  // in memory of the call's device, or null: value
  long long value;      // 0: there is none, the call's own count is taken
};

// Weights of a token, from counts. `length` is L; group is the prompt's or rollout's.
struct LossReductions {
  long long policy, kl;  // LossReduction of the policy term and of the KL term
  double length;
  LossGlobal tokens, sequences, groups;
};

}  // namespace rlk
