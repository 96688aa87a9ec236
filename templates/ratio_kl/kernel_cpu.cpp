// SPDX-License-Identifier: Apache-2.0
// ratio_kl on the CPU: the importance ratio and a KL estimate of each token, from its log-probs.
//
//   ratio = exp(clamp(log_prob - old))    inactive: 1
//   kl    = k(ref - log_prob)             inactive: 0; common/loss/kl.h has k
//   grad  = grad_ratio * dratio + grad_kl * dkl
//
// Constants, initialized by the JIT; common/loss/options.h has their values, -1 is run-time:
//   kKl, kKlGradient   (forward)
//
//   rlk_ratio_kl_fwd_main   item: a token -> ratio, kl and their slopes
//   rlk_ratio_kl_bwd_main   item: a token -> grad
//
// Reads 12 bytes a token and its mask, writes 8 or 16; backward: reads 16, writes 4.
#include "common/cpu/vector.h"

extern const long long kKl;
extern const long long kKlGradient;

#include "token.h"

namespace rlk {

RLK_INLINE VecF load_array(const RatioKlArray& array, long long first, long long count) {
  if (array.data == nullptr) return splat(0.0f);
  return load_some(static_cast<const float*>(array.data) + first, count);
}

extern "C" void rlk_ratio_kl_fwd_main(const void* args, long long begin, long long end) {
  const auto& a = *static_cast<const RatioKlArgs*>(args);
  const LossChoices c = choices(a);
  const auto* const mask = static_cast<const unsigned char*>(a.mask.data);
#pragma clang loop unroll(disable)
  for (long long t = begin; t < end; t += kLanes) {
    const long long count = end - t < kLanes ? end - t : kLanes;
    Mask active = 0;
#pragma clang loop unroll(disable)
    for (long long i = 0; i < count; ++i) active[i] = mask == nullptr || mask[t + i] != 0 ? -1 : 0;
    const RatioKlToken x = ratio_kl(c, a.values, active, load_some(a.log_prob + t, count),
                                    load_array(a.old, t, count), load_array(a.ref, t, count));
    store_some(a.ratio + t, x.ratio, count);
    store_some(a.kl + t, x.kl, count);
    if (a.ratio_slope) {
      store_some(a.ratio_slope + t, x.ratio_slope, count);
      store_some(a.kl_slope + t, x.kl_slope, count);
    }
  }
}

extern "C" void rlk_ratio_kl_bwd_main(const void* args, long long begin, long long end) {
  const auto& a = *static_cast<const RatioKlBackwardArgs*>(args);
#pragma clang loop unroll(disable)
  for (long long t = begin; t < end; t += kLanes) {
    const long long count = end - t;
    const VecF grad =
        ratio_kl_gradient(load_array(a.grad_ratio, t, count), load_some(a.ratio_slope + t, count),
                          load_array(a.grad_kl, t, count), load_some(a.kl_slope + t, count));
    store_some(a.grad + t, grad, count);
  }
}

}  // namespace rlk
