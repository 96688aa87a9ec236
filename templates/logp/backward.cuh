// SPDX-License-Identifier: Apache-2.0
// Entry points of logp's backward; see kernel.cuh.
#pragma once

#include "logp/gradients.cuh"

namespace rlk {

extern "C" __global__ void __launch_bounds__(256)
    rlk_logp_bwd_pack(const __grid_constant__ CudaCopy copy) {
  pack(copy);
}

extern "C" __global__ void __launch_bounds__(kLogpThreads, 4)
    rlk_logp_bwd_main(const __grid_constant__ Args a) {
  if (a.unless_one && *a.unless_one == 1.0f) return;
  const Int64 num_items = a.num_rows * a.num_parts;
#pragma unroll 1
  for (Int64 item = blockIdx.x; item < num_items; item += gridDim.x) {
    const Int64 row = a.num_parts == 1 ? item : item / a.num_parts;
    const Int64 begin = (item - row * a.num_parts) * a.part_leaves * kLogpLeaf;
    const Int64 end = min(begin + a.part_leaves * kLogpLeaf, vocab(a));
    const Int64 target = target_of(a, row);
    T* const to = row_of(a.grad_logits, row);
    if (!is_active(a, row, target)) {
      write_zeros(a, to, begin, end);
      continue;
    }
    const GradientRow values = gradient_row(a, row, target);
    const T* const from = row_of(a.logits, row);
    const auto load = [&](unsigned(&words)[4], Int64 col) { ld_stream(words, from + col); };
    if (is_capped(a)) {
      write_gradients<true, 2>(a, values, from, to, begin, end, load);
    } else {
      write_gradients<false, 2>(a, values, from, to, begin, end, load);
    }
  }
}

}  // namespace rlk
