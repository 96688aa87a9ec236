// SPDX-License-Identifier: Apache-2.0
// The names of a policy loss's options for host code: words of its choices, each beside its code,
// and names of its numbers. From here Python has them, and the text form of kernels.
#pragma once

#include "jit/op.hpp"
#include "templates/common/loss/options.h"
#include "templates/common/types.hpp"

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace rlk {

// Options of a call as Python resolved them. Infinite bounds are no bounds.
struct LossOptions {
  LossChoices choices{};
  LossValues values{};
  std::int64_t reduction = kTokenMean, kl_reduction = kTokenMean;  // LossReduction
  double length = 0;                                               // L
  std::int64_t group_size = 0;  // in place of boundaries of groups; 0: none
};

inline constexpr jit::Word k_policy_losses[] = {
    {"ppo", kPpo}, {"cispo", kCispo}, {"sapo", kSapo}, {"gpg", kGpg}};
inline constexpr jit::Word k_ratio_levels[] = {
    {"token", kTokenRatio}, {"sequence", kSequenceRatio}, {"sequence_token", kSequenceTokenRatio}};
inline constexpr jit::Word k_advantage_levels[] = {{"token", 0}, {"sequence", 1}};
inline constexpr jit::Word k_dual_clips[] = {{"on", kLossCap}, {"delta", kRatioCap}};
inline constexpr jit::Word k_tis_modes[] = {
    {"truncate", kTruncate}, {"mask", kMask}, {"band", kBand}, {"given", kGiven}};
inline constexpr jit::Word k_tis_levels[] = {
    {"token", kTokenLevel}, {"sequence", kSequenceLevel}, {"geometric", kGeometricLevel}};
inline constexpr jit::Word k_tis_rejected[] = {{"stay", 0}, {"leave", 1}};
inline constexpr jit::Word k_kl_estimators[] = {
    {"k1", kKl1}, {"abs", kKlAbs}, {"k2", kKl2}, {"k3", kKl3}};
inline constexpr jit::Word k_kl_gradients[] = {
    {"pathwise", kPathwise}, {"unbiased", kUnbiased}, {"importance", kImportance}};
inline constexpr jit::Word k_kl_weights[] = {{"one", kNoKlRatio},
                                             {"policy", kPolicyRatio},
                                             {"token", kOwnRatio},
                                             {"rollout", kRolloutRatio}};
inline constexpr jit::Word k_entropy_bonuses[] = {{"on", 1}};
// Groups are of prompts or of rollouts: one formula.
inline constexpr jit::Word k_reductions[] = {
    {"token_mean", kTokenMean},
    {"token_sum", kTokenSum},
    {"sequence_mean", kSequenceMean},
    {"sequence_mean_valid", kSequenceMeanValid},
    {"seq_mean_token_sum", kSeqMeanTokenSum},
    {"seq_mean_token_sum_norm", kSeqMeanTokenSumNorm},
    {"seq_mean_token_sum_norm_valid", kSeqMeanTokenSumNormValid},
    {"token_sum_over_L", kTokenSumOverL},
    {"sequence_sum", kSequenceSum},
    {"prompt_mean", kGroupMean},
    {"rollout_mean", kGroupMean},
};
// No choice of a kernel: Python makes a bound of it.
inline constexpr jit::Word k_tis_overflows[] = {{"cap", 0}, {"zero", 1}};

struct LossChoice {
  std::string_view name;  // in Python
  long long LossChoices::* field;
  std::span<const jit::Word> words;
  jit::ConstantDef constant;
};

inline constexpr LossChoice k_loss_choices[] = {
    {"policy_loss",
     &LossChoices::policy,
     k_policy_losses,
     {"loss", "kPolicy", jit::constant_words<k_policy_losses, /*hides_first=*/false>}},
    {"ratio_level",
     &LossChoices::ratio,
     k_ratio_levels,
     {"ratio", "kRatio", jit::constant_words<k_ratio_levels>}},
    {"advantage_level",
     &LossChoices::mean_advantage,
     k_advantage_levels,
     {"advantage", "kMeanAdvantage", jit::constant_words<k_advantage_levels>}},
    {"dual_clip",
     &LossChoices::dual_clip,
     k_dual_clips,
     {"dual_clip", "kDualClip", jit::constant_words<k_dual_clips>}},
    {"tis_mode",
     &LossChoices::correction,
     k_tis_modes,
     {"tis", "kCorrection", jit::constant_words<k_tis_modes>}},
    {"tis_level",
     &LossChoices::level,
     k_tis_levels,
     {"tis_level", "kLevel", jit::constant_words<k_tis_levels>}},
    {"tis_rejected",
     &LossChoices::leaves,
     k_tis_rejected,
     {"rejected", "kLeaves", jit::constant_words<k_tis_rejected>}},
    {"kl_estimator",
     &LossChoices::kl,
     k_kl_estimators,
     {"kl", "kKl", jit::constant_words<k_kl_estimators>}},
    {"kl_gradient",
     &LossChoices::kl_gradient,
     k_kl_gradients,
     {"kl_gradient", "kKlGradient", jit::constant_words<k_kl_gradients>}},
    {"kl_weight",
     &LossChoices::kl_weight,
     k_kl_weights,
     {"kl_weight", "kKlWeight", jit::constant_words<k_kl_weights>}},
    {"entropy",
     &LossChoices::entropy,
     k_entropy_bonuses,
     {"entropy", "kEntropy", jit::constant_words<k_entropy_bonuses>}},
};
static_assert(sizeof k_loss_choices / sizeof *k_loss_choices * sizeof(long long) ==
              sizeof(LossChoices));

consteval const LossChoice& loss_choice(std::string_view name) {
  for (const LossChoice& choice : k_loss_choices) {
    if (choice.name == name) return choice;
  }
  throw "no choice of this name";
}

struct LossNumber {
  std::string_view name;  // in Python
  float LossValues::* field;
};

inline constexpr LossNumber k_loss_numbers[] = {
    {"log_ratio_low", &LossValues::log_ratio_low},
    {"log_ratio_high", &LossValues::log_ratio_high},
    {"kl_log_ratio_low", &LossValues::kl_log_ratio_low},
    {"kl_log_ratio_high", &LossValues::kl_log_ratio_high},
    {"ratio_low", &LossValues::ratio_low},
    {"ratio_high", &LossValues::ratio_high},
    {"dual_ratio", &LossValues::dual_ratio},
    {"tau_positive", &LossValues::tau_positive},
    {"tau_negative", &LossValues::tau_negative},
    {"correction_low", &LossValues::correction_low},
    {"correction_high", &LossValues::correction_high},
    {"correction_clamp", &LossValues::correction_clamp},
    {"correction_overflow_log", &LossValues::correction_overflow_log},
    {"kl_coef", &LossValues::kl_coef},
    {"kl_clamp", &LossValues::kl_clamp},
    {"kl_output_clamp", &LossValues::kl_output_clamp},
    {"entropy_coef", &LossValues::entropy_coef},
};
static_assert(sizeof k_loss_numbers / sizeof *k_loss_numbers * sizeof(float) == sizeof(LossValues));

// The constants of a template that takes these choices: their type, then one each.
template <std::size_t count>
constexpr std::array<jit::ConstantDef, 1 + count> loss_constants(
    const LossChoice (&choices)[count]) {
  std::array<jit::ConstantDef, 1 + count> constants{k_type_constant};
  for (std::size_t i = 0; i < count; ++i) constants[1 + i] = choices[i].constant;
  return constants;
}

// Their values for a forward, whose results are float32.
inline jit::Specialization loss_specialization(const jit::OpCall& call, Target target,
                                               std::span<const LossChoice> choices,
                                               const LossChoices& chosen) {
  jit::Specialization spec{call.op, call.pass, target, {kFloat32}};
  std::size_t next = 1;
  for (const LossChoice& choice : choices) spec.values[next++] = chosen.*choice.field;
  return spec;
}

}  // namespace rlk
