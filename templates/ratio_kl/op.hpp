// SPDX-License-Identifier: Apache-2.0
// ratio_kl: importance ratios and KL estimates of tokens, from their log-probs.
#pragma once

#include "jit/op.hpp"
#include "templates/common/loss/options.hpp"
#include "templates/ratio_kl/args.h"

#include <cstdint>
#include <optional>

namespace rlk {

// Tensors have the shape of log_prob.
struct RatioKlCall : jit::OpCall, LossOptions {  // the estimator, clamps of the log-ratio and of k3
  Tensor log_prob;                               // dense float32, as logp gives it
  Tensor old, ref;                               // any floating dtype
  Tensor target;  // integers; those that are ignore_index are inactive
  Tensor mask;    // optional; bool, integer or float of 0 and 1
  std::optional<std::int64_t> ignore_index;

  // Forward: written. float32; the slopes may be absent. Backward: the slopes are read.
  Tensor ratio, kl, ratio_slope, kl_slope;

  Tensor grad_ratio, grad_kl;  // backward: any floating dtype; those absent are 0
  Tensor grad;                 // backward: written, float32
};

// The parameters of a backward.
inline constexpr jit::Parameter k_ratio_kl_gradient_parameters[] = {
    {"ratio_slope", jit::Kind::tensor, jit::field_of<&RatioKlCall::ratio_slope>},
    {"kl_slope", jit::Kind::tensor, jit::field_of<&RatioKlCall::kl_slope>},
    {"grad_ratio", jit::Kind::tensor, jit::field_of<&RatioKlCall::grad_ratio>},
    {"grad_kl", jit::Kind::tensor, jit::field_of<&RatioKlCall::grad_kl>},
};

namespace templates {
extern const jit::Op ratio_kl_op;
}

}  // namespace rlk
