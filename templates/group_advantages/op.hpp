// SPDX-License-Identifier: Apache-2.0
// group_advantages: rewards against the mean of their group.
#pragma once

#include "jit/op.hpp"
#include "templates/group_advantages/args.h"

#include <cstdint>

namespace rlk {

struct GroupAdvantagesCall : jit::OpCall {
  Tensor rewards;       // any floating dtype, any shape: groups follow row-major order
  Tensor group_starts;  // integers [P + 1], or absent: group_size
  std::int64_t group_size = 0;
  std::int64_t normalize = kStd;  // an AdvantageNormalize
  bool eps_is_max = false;
  std::int64_t ddof = 1;
  double eps = 1e-6;
  std::int64_t group_of_one = kZero;  // an AdvantageOfOne
  Tensor advantages;                  // float32, written
};

namespace templates {
extern const jit::Op group_advantages_op;
}

}  // namespace rlk
