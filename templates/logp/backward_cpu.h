// SPDX-License-Identifier: Apache-2.0
// The backward: the gradient of each logit, in place where both matrices are one.
#pragma once

#include "leaf_cpu.h"

namespace rlk {

extern "C" void rlk_logp_bwd_main(const Args* args, Int64 begin, Int64 end) {
  const Args& a = *args;
  alignas(64) float x[kLeaf];
#pragma clang loop unroll(disable)
  for (Int64 item = begin; item < end; ++item) {
    const Part part = part_of(a, item);
    const Int64 row = part.row, at = output_row(a, row), active = a.first_row + row;
    const float scale = inverse_temperature(a, row);
    const float grad = scaled_grad(a, a.grad, active, scale);
    const VecF rest = splat(scaled_grad(a, a.grad_lse, active, scale) - grad);
    GradientValues values{splat(a.row_max[at]), splat(a.row_log_sum[at]), splat(grad), rest, rest};
    if (has_entropy_grad(a)) {
      values.of_entropy = splat(scaled_grad(a, a.grad_entropy, active, scale));
      values.entropy = splat(a.entropy[at]);
    }
#pragma clang loop unroll(disable)
    for (Int64 leaf = part.begin; leaf < part.end; ++leaf) {
      const LogpLeaf of_leaf = leaves_of(a).at(leaf);
      const Int64 cols = of_leaf.cols;
      const Int64 padded = ceil_div(cols, kLanes) * kLanes;
      const Int64 t = a.target[active] - of_leaf.begin;
      const Int32 target = t >= 0 && t < cols ? static_cast<Int32>(t) : -1;
      load_span(a.logits.data, offset_of(a, a.logits, row, of_leaf.begin), a.logits.col_stride, kX,
                x, cols, padded);
#pragma clang loop unroll(disable)
      for (Int64 v = 0; v < padded; v += kLanes) {
        const VecI is_target = lane_index() + static_cast<Int32>(v) == splat_int(target);
        store(x + v,
              logit_gradient(a, logit(a, load(x + v), 0.0f, splat(scale)), values, is_target));
      }
      store_span(a.grad_logits.data, offset_of(a, a.grad_logits, row, of_leaf.begin),
                 a.grad_logits.col_stride, kX, x, cols);
    }
  }
}

}  // namespace rlk
