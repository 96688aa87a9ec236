// SPDX-License-Identifier: Apache-2.0
// logp: log-probabilities of target ids from logits.
#pragma once

#include "templates/common/logp/call.hpp"

namespace rlk {

struct LogpCall : LogpCallBase {
  Tensor logits;          // [..., V]; float32, bfloat16 or float16
  bool in_place = false;  // the backward writes over the logits: grad_logits is logits

  Tensor grad_logits;  // backward: written; shape and dtype of logits
  Tensor unless_one;   // backward: optional, one float32; where it is 1 nothing is done
};

namespace templates {
extern const jit::Op logp_op;
}

}  // namespace rlk
