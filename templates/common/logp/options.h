// SPDX-License-Identifier: Apache-2.0
// What a model does to its logits, in the arguments of every kernel of logits. Included by kernels
// of both backends, so this file includes nothing.
#pragma once

namespace rlk {

// Read where the constants kSoftcap, kLogitScale are not 0. Where one is -1, arguments that change
// nothing stand for an absent option: a softcap of 0, a logit_scale of 1.
struct LogitOptions {
  float softcap, inverse_softcap;
  float logit_scale;
};

}  // namespace rlk
