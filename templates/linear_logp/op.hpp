// SPDX-License-Identifier: Apache-2.0
// linear_logp: log-probabilities of target ids straight from hidden states.
#pragma once

#include "templates/common/logp/call.hpp"

#include <optional>

namespace rlk {

// Shapes: hidden [..., D], weight [V, D], target [...], bias [V]; everything a row: [...].
struct LinearLogpCall : LogpCallBase {
  Tensor hidden, weight;    // float32, bfloat16 or float16, the same
  Tensor bias;              // optional; hidden's dtype or float32
  std::optional<int> tile;  // CUDA: in place of the one that is chosen; an index of tile_names

  // Backward: gradients that are absent are not computed.
  Tensor grad_hidden, grad_weight, grad_bias;
};

// Index of the constant kTile among the op's constants.
inline constexpr std::size_t k_linear_logp_tile = 6;

namespace templates {
extern const jit::Op linear_logp_op;
}

}  // namespace rlk
