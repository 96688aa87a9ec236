// SPDX-License-Identifier: Apache-2.0
// ratio_kl: importance ratios and KL estimates of tokens, from their log-probs.
#pragma once

#include "jit/op.hpp"
#include "templates/ratio_kl/args.h"

#include <cstdint>
#include <optional>

namespace rlk {

// Tensors have the shape of log_prob.
struct RatioKlCall : jit::OpCall {
  Tensor log_prob;  // dense float32, as logp gives it
  Tensor old, ref;  // any floating dtype
  Tensor target;    // integers; those that are ignore_index are inactive
  Tensor mask;      // optional; bool, integer or float of 0 and 1
  std::optional<std::int64_t> ignore_index;
  LossChoices choices{};  // kl and kl_gradient
  LossValues values{};    // the clamps of the log-ratio and of k3

  // Forward: written. float32; the slopes may be absent. Backward: the slopes are read.
  Tensor ratio, kl, ratio_slope, kl_slope;

  Tensor grad_ratio, grad_kl;  // backward: any floating dtype; those absent are 0
  Tensor grad;                 // backward: written, float32
};

namespace templates {
extern const jit::Op ratio_kl_op;
}

}  // namespace rlk
