// SPDX-License-Identifier: Apache-2.0
// Entry point of ppo_loss's backward on the CPU; see kernel_cpu.cpp.
#pragma once

#include "common/cpu/convert.h"
#include "ppo_loss/args.h"

namespace rlk {

// Tokens [begin, end). 0 * inf is no gradient of a token that has none; by 1 nothing changes,
// -0 neither, so that one array is not touched.
extern "C" void rlk_ppo_loss_bwd_main(const void* args, long long begin, long long end) {
  const auto& a = *static_cast<const PpoLossBackwardArgs*>(args);
  if (a.grad == a.saved && *a.upstream == 1.0f) return;
  const VecF upstream = splat(*a.upstream);
  char* const grad = static_cast<char*>(a.grad);
#pragma clang loop unroll(disable)
  for (long long t = begin; t < end; t += kLanes) {
    const VecF saved = load_some(a.saved + t, end - t);
    const VecF x = select(saved == 0.0f, saved, upstream * saved);
    if (end - t >= kLanes) {
      store_vector(grad + t * size_of(kX), x, kX);
    } else {
#pragma clang loop unroll(disable)
      for (long long i = t; i < end; ++i) store_element(grad, i, x[i - t], kX);
    }
  }
}

}  // namespace rlk
