// SPDX-License-Identifier: Apache-2.0
// linear_logp: log-probabilities of target ids straight from hidden states.
#pragma once

#include "jit/op.hpp"

#include <cstdint>
#include <optional>

namespace rlk {

// Shapes: hidden [..., D], weight [V, D], target [...], bias [V]; everything a row: [...].
struct LinearLogpCall : jit::OpCall {
  Tensor hidden, weight;  // float32, bfloat16 or float16, the same
  Tensor target;          // any integer type
  Tensor bias;            // optional; hidden's dtype or float32
  Tensor temperature;     // optional, a floating type; else temperature_value
  double temperature_value = 1.0;
  std::optional<double> softcap;  // above 0
  double logit_scale = 1.0;
  Tensor mask;  // optional; bool, integer or float of 0 and 1
  std::optional<std::int64_t> ignore_index = -100;
  std::optional<int> tile;  // CUDA: in place of the one that is chosen; an index of tile_names

  // Forward: written. Backward: read. float32 [...]. row_max and row_log_sum may be absent in the
  // forward.
  Tensor log_prob, row_max, row_log_sum;
  // Forward: written where present. Backward: entropy is read with grad_entropy. float32 [...].
  Tensor entropy, lse;

  // Backward: upstream gradients, floats [...]; those absent are 0. Gradients that are absent are
  // not computed.
  Tensor grad_output, grad_entropy, grad_lse;
  Tensor grad_hidden, grad_weight, grad_bias;
};

// Index of the constant kTile among the op's constants.
inline constexpr std::size_t k_linear_logp_tile = 6;

namespace templates {
extern const jit::Op linear_logp_op;
}

}  // namespace rlk
