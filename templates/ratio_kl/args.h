// SPDX-License-Identifier: Apache-2.0
// What ratio_kl's kernels, on the CPU and on CUDA, and their host code agree on.
#pragma once

#include "common/loss/options.h"

namespace rlk {

// One value a token. CPU: dense, float32 or the mask's bytes, and nothing but data is read.
struct RatioKlArray {
  const void* data;  // or null
  int type;          // a TypeCode
  int num_axes;      // sizes[i] and strides[i], outermost first; strides count elements
  long long sizes[8], strides[8];
};

struct RatioKlArgs {
  long long num_tokens;
  const float* log_prob;
  RatioKlArray old, ref;
  RatioKlArray mask;    // or null: all are active. CPU: of the active tokens, ids looked at
  RatioKlArray target;  // CUDA, with has_ignore_index
  int has_ignore_index;
  long long ignore_index;
  LossChoices choices;  // kl and kl_gradient, read where the constant is -1
  LossValues values;    // the clamps of the log-ratio and of k3
  float *ratio, *kl;
  float *ratio_slope, *kl_slope;  // or both null: derivatives with respect to log_prob
};

struct RatioKlBackwardArgs {
  long long num_tokens;
  RatioKlArray grad_ratio, grad_kl;  // null: 0
  const float *ratio_slope, *kl_slope;
  float* grad;  // of log_prob
};

// CPU entry points: tokens [begin, end).
using RatioKlCpuStep = void (*)(const void* args, long long begin, long long end);

}  // namespace rlk
