// SPDX-License-Identifier: Apache-2.0
// group_advantages: rewards against the mean of their group.
#pragma once

#include "jit/op.hpp"
#include "templates/common/expect.hpp"
#include "templates/group_advantages/args.h"

#include <cstdint>
#include <optional>

namespace rlk {

struct GroupAdvantagesCall : jit::OpCall {
  Tensor rewards;       // any floating dtype, any shape: groups follow row-major order
  Tensor group_starts;  // integers [P + 1], or absent: group_size
  std::optional<std::int64_t> group_size;
  std::int64_t normalize = kStd;         // an AdvantageNormalize
  std::optional<std::int64_t> ddof = 1;  // present
  double eps = 1e-6;
  std::int64_t eps_mode = 0;          // 1: divides by max(std, eps), 0: by std + eps
  std::int64_t group_of_one = kZero;  // an AdvantageOfOne
  Tensor advantages;                  // float32, written
};

inline constexpr jit::Word k_normalizations[] = {
    {"std", kStd}, {"center", kCenter}, {"rloo", kRloo}, {"loo_std", kLooStd}};
inline constexpr jit::Word k_eps_modes[] = {{"add", 0}, {"max", 1}};
inline constexpr jit::Word k_groups_of_one[] = {
    {"zero", kZero}, {"reward", kReward}, {"error", kRefused}};

namespace templates {
extern const jit::Op group_advantages_op;
}

}  // namespace rlk
