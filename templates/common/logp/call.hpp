// SPDX-License-Identifier: Apache-2.0
// What every op that takes log-probs of target ids has in its call, beside the matrices that the
// logits come from.
#pragma once

#include "jit/op.hpp"

#include <cstdint>
#include <optional>

namespace rlk {

// Tensors a row have the shape [...] of the leading axes.
struct LogpCallBase : jit::OpCall {
  Tensor target;       // any integer type
  Tensor temperature;  // optional, a floating type; else temperature_value
  double temperature_value = 1.0;
  std::optional<double> softcap;  // above 0
  double logit_scale = 1.0;
  Tensor mask;  // optional; bool, integer or float of 0 and 1
  std::optional<std::int64_t> ignore_index = -100;

  // Forward: written. Backward: read. float32 [...]. row_max and row_log_sum may be absent in the
  // forward.
  Tensor log_prob, row_max, row_log_sum;
  // Forward: written where present. Backward: entropy is read with grad_entropy. float32 [...].
  Tensor entropy, lse;

  // Backward: upstream gradients, floats [...]; those absent are 0.
  Tensor grad_output, grad_entropy, grad_lse;

  // Forward: entropy is asked for. Backward: it has a gradient.
  bool needs_entropy() const {
    return pass == jit::Pass::fwd ? entropy.present() : grad_entropy.present();
  }
};

}  // namespace rlk
