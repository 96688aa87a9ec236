// SPDX-License-Identifier: Apache-2.0
// ratio_kl on CUDA: the importance ratio and a KL estimate of each token, from its log-probs.
//
//   ratio = exp(clamp(log_prob - old))    inactive: 1
//   kl    = k(ref - log_prob)             inactive: 0; common/loss/kl.h has k
//   grad  = grad_ratio * dratio + grad_kl * dkl
//
// Rendered before this text; common/loss/options.h has their values, -1 is run-time:
//   kKl, kKlGradient   (forward)
// Macro: RLK_BACKWARD, 1 gives the entry of the backward, 0 that of the forward.
//
//                           grid
//   rlk_ratio_kl_fwd_main   any x 256, a thread a token -> ratio, kl and their slopes
//   rlk_ratio_kl_bwd_main   any x 256, a thread a token -> grad
//
// Reads 12 bytes a token, its id and its mask, writes 8 or 16; backward: reads 16, writes 4.
#include "common/cuda/element.cuh"
#include "common/cuda/lanes.cuh"
#include "ratio_kl/token.h"

namespace rlk {

RLK_DEVICE Int64 offset_of(const RatioKlArray& array, Int64 token) {
  if (array.num_axes == 1) return token * array.strides[0];
  Int64 offset = 0;
#pragma unroll 1
  for (int axis = array.num_axes - 1; axis >= 0; --axis) {
    const Int64 rest = token / array.sizes[axis];
    offset += (token - rest * array.sizes[axis]) * array.strides[axis];
    token = rest;
  }
  return offset;
}

RLK_DEVICE float value_of(const RatioKlArray& array, Int64 token) {
  return read_float(array.data, offset_of(array, token), array.type);
}

#if RLK_BACKWARD

extern "C" __global__ void __launch_bounds__(256)
    rlk_ratio_kl_bwd_main(const __grid_constant__ RatioKlBackwardArgs a) {
#pragma unroll 1
  for (Int64 t = blockIdx.x * Int64{256} + threadIdx.x; t < a.num_tokens;
       t += gridDim.x * Int64{256}) {
    const float grad_ratio = a.grad_ratio.data ? value_of(a.grad_ratio, t) : 0.0f;
    const float grad_kl = a.grad_kl.data ? value_of(a.grad_kl, t) : 0.0f;
    a.grad[t] = ratio_kl_gradient(grad_ratio, a.ratio_slope[t], grad_kl, a.kl_slope[t]);
  }
}

#else

RLK_DEVICE bool is_active(const RatioKlArgs& a, Int64 token) {
  if (a.has_ignore_index &&
      read_integer(a.target.data, offset_of(a.target, token), a.target.type) == a.ignore_index) {
    return false;
  }
  return !a.mask.data || read_mask(a.mask.data, offset_of(a.mask, token), a.mask.type);
}

extern "C" __global__ void __launch_bounds__(256)
    rlk_ratio_kl_fwd_main(const __grid_constant__ RatioKlArgs a) {
  const LossChoices c = choices(a);
#pragma unroll 1
  for (Int64 t = blockIdx.x * Int64{256} + threadIdx.x; t < a.num_tokens;
       t += gridDim.x * Int64{256}) {
    const bool active = is_active(a, t);
    float log_prob = 0.0f, old = 0.0f, ref = 0.0f;
    if (active) {
      log_prob = a.log_prob[t];
      old = value_of(a.old, t);
      ref = value_of(a.ref, t);
    }
    const RatioKlToken x = ratio_kl(c, a.values, active, log_prob, old, ref);
    a.ratio[t] = x.ratio;
    a.kl[t] = x.kl;
    if (a.ratio_slope) {
      a.ratio_slope[t] = x.ratio_slope;
      a.kl_slope[t] = x.kl_slope;
    }
  }
}

#endif

}  // namespace rlk
