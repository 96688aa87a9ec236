// SPDX-License-Identifier: Apache-2.0
// The backward: dZ of each leaf, the products that sum it up, and the stores of the sums.
#pragma once

#include "../common/cpu/math.h"
#include "../common/loss/exponential.h"
#include "pack_cpu.h"

namespace rlk {
namespace {

// dZ of one vector of rows over a leaf, in place of the dot products in c, with a softcap or a
// gradient of the entropy. `target` is the column of the target in the leaf.
RLK_INLINE void gradient_of_logits(const Args& a, Int64 row, float* c, const float* bias,
                                   Int64 cols, VecI target) {
  const VecF scale = load(a.lane_scale + row);
  GradientValues row_values{load(a.lane_max + row), load(a.lane_log_sum + row),
                            load(a.lane_grad_target + row), load(a.lane_grad_rest + row),
                            splat(0.0f)};
  if (has_entropy_grad(a)) {
    row_values.of_entropy = load(a.lane_grad_entropy + row);
    row_values.entropy = load(a.lane_entropy + row);
  }
#pragma clang loop unroll(disable)
  for (Int64 v = 0; v < cols; ++v) {
    const Logit x = logit(a, load(c + v * kPanel), bias[v], scale);
    const VecI is_target = target == static_cast<Int32>(v);
    store(c + v * kPanel, logit_gradient(a, x, row_values, is_target));
  }
}

// The same with neither, from the leaf's logits z and their maximum, which may lie in c; the
// target's column is left to the caller. As in the forward, the exponentials are about the leaf's
// maximum, so that a factor of the row and the leaf is all that they lack.
RLK_INLINE void gradient_of_leaf(const Args& a, Int64 row, const float* z, VecF max, Int64 cols,
                                 float* c) {
  const VecF below = (max - load(a.lane_max + row)) - load(a.lane_log_sum + row);
  const VecF factor = exp(below) * load(a.lane_grad_rest + row), base = base_of(max);
#pragma clang loop unroll(disable)
  for (Int64 v = 0; v < cols; ++v) {
    store(c + v * kPanel, exp(load_unaligned(z + v * kPanel) - base) * factor);
  }
}

RLK_INLINE VecF largest_of(const float* z, Int64 cols) {
  VecF max = splat(-__builtin_inff());
#pragma clang loop unroll(disable)
  for (Int64 v = 0; v < cols; ++v) {
    const VecF x = load_unaligned(z + v * kPanel);
    max = select(x > max, x, max);
  }
  return max;
}

// Where a panel's logits of a kept leaf lie: in `kept` itself, or else, where its rows stand there
// in panels of another kind, copied to c.
RLK_INLINE const float* kept_logits(const Args& a, Int64 row, Int64 col, Int64 cols, float* c) {
  const Int64 lanes = min(kPanel, a.num_rows - row), first = a.first_row + row;
  const auto place = [&](Int64 lane) __attribute__((always_inline)) {
    return a.kept_places ? a.kept_places[first + lane] : first + lane;
  };
  if (lanes == kPanel && place(0) % kPanel == 0 && place(kPanel - 1) - place(0) == kPanel - 1) {
    return kept_panel(a, place(0), col).data;
  }
#pragma clang loop unroll(disable)
  for (Int64 lane = 0; lane < lanes; ++lane) {
    const Int64 within = place(lane) % kPanel;
    const KeptPanel from = kept_panel(a, place(lane) - within, col);
#pragma clang loop unroll(disable) vectorize(disable)
    for (Int64 v = 0; v < cols; ++v) c[v * kPanel + lane] = from.data[v * from.width + within];
  }
  // Lanes of no row that share a vector with one.
#pragma clang loop unroll(disable)
  for (Int64 v = 0; v < cols; ++v) {
#pragma clang loop unroll(disable) vectorize(disable)
    for (Int64 lane = lanes; lane < ceil_div(lanes, kLanes) * kLanes; ++lane) {
      c[v * kPanel + lane] = 0.0f;
    }
  }
  return c;
}

// dZ of a panel of rows over the leaf that is `v` columns after the wave's begin, from the dot
// products in c or from kept logits.
RLK_INLINE void gradient_of_panel(const Args& a, Int64 row, Int64 v, Int64 cols, const float* bias,
                                  float* c) {
  const bool is_plain = !is_capped(a) && !has_entropy_grad(a);
  const float* const kept =
      a.kept_wave >= 0 ? kept_logits(a, row, a.kept_wave + v, cols, c) : nullptr;
  // Column of each row's target in the leaf, or -1.
  alignas(64) Int32 target[kPanel];
#pragma clang loop unroll(disable) vectorize(disable)
  for (Int64 i = 0; i < kPanel; ++i) {
    const Int64 t = a.lane_target[row + i] - (a.wave_begin + v);
    target[i] = t >= 0 && t < cols ? static_cast<Int32>(t) : -1;
  }
#pragma clang loop unroll(disable)
  for (Int64 j = 0; j < vectors_for(a.num_rows - row) * kLanes; j += kLanes) {
    if (!is_plain) {
      gradient_of_logits(a, row + j, c + j, bias, cols, *reinterpret_cast<const VecI*>(target + j));
      continue;
    }
    const VecF max = kept ? largest_of(kept + j, cols)
                          : logits_of_leaf(a, c + j, bias, cols, load(a.lane_scale + row + j));
    gradient_of_leaf(a, row + j, kept ? kept + j : c + j, max, cols, c + j);
  }
  if (!is_plain) return;
#pragma clang loop unroll(disable) vectorize(disable)
  for (Int64 i = 0; i < kPanel; ++i) {
    if (target[i] >= 0) c[target[i] * kPanel + i] = a.lane_grad_target[row + i];
  }
}

RLK_INLINE float scaled_grad(const Args& a, const float* grad, Int64 i) {
  return scaled_grad(a, grad, a.first_row + i, a.lane_scale[i]);
}

// Sums in memory of `type`, which is kX or fp32.
RLK_INLINE void store_gradient(void* base, Int64 offset, Int64 stride, Int64 type, const float* sum,
                               Int64 count) {
  if (type == kX) return store_span(base, offset, stride, kX, sum, count);
  store_span(base, offset, stride, 1, sum, count);
}

// Where a chunk's sum of its lane i waits for the next chunk.
RLK_INLINE float& bias_lane(const Args& a, Int64 v, Int64 i) {
  return a.bias_lanes[(a.wave_begin + v) * kPanel + (a.first_lane + i) % kPanel];
}

// What the gradients of a panel of rows are made of. That of the target's column, grad * (1 - p) +
// grad_lse * p, is exact where p is near 1, since 1 - p comes from log p, and where it is near 0.
RLK_INLINE void pack_gradients(const Args& a, Int64 row) {
  alignas(64) float grad[kPanel], lse[kPanel], logp[kPanel];
#pragma clang loop unroll(disable) vectorize(disable)
  for (Int64 lane = 0; lane < kPanel; ++lane) {
    const Int64 i = row + lane;
    const bool real = i < a.num_rows;
    const Int64 from = real ? output_row(a, i) : 0;
    a.lane_max[i] = real ? a.row_max[from] : 0.0f;
    a.lane_log_sum[i] = real ? a.row_log_sum[from] : 0.0f;
    logp[lane] = real ? a.logp[from] : 0.0f;
    grad[lane] = real ? scaled_grad(a, a.grad, i) : 0.0f;
    lse[lane] = real ? scaled_grad(a, a.grad_lse, i) : 0.0f;
    a.lane_grad_rest[i] = lse[lane] - grad[lane];
    if (!has_entropy_grad(a)) continue;
    a.lane_grad_entropy[i] = real ? scaled_grad(a, a.grad_entropy, i) : 0.0f;
    a.lane_entropy[i] = real ? a.entropy[from] : 0.0f;
  }
#pragma clang loop unroll(disable)
  for (Int64 j = 0; j < kPanel; j += kLanes) {
    const VecF l = load(logp + j);
    const VecF exact = fma(load(grad + j), -exponential(l).expm1, load(lse + j) * exp(l));
    store(a.lane_grad_target + row + j, select(l == -__builtin_inff(), splat(0.0f), exact));
  }
}

}  // namespace

extern "C" void rlk_linear_logp_bwd_pack_weight(const Args* args, Int64 begin, Int64 end, void*) {
  const Args& a = *args;
#pragma clang loop unroll(disable)
  for (Int64 leaf = begin; leaf < end; ++leaf) {
    const Int64 v = leaf * kLeaf;
    pack_weight(a, a.wave_begin + v, min(kLeaf, a.wave_cols - v), 0, dim(a), a.padded_wave,
                a.weight_wave + v * kPanel);
  }
}

extern "C" void rlk_linear_logp_bwd_pack_hidden(const Args* args, Int64 begin, Int64 end, void*) {
  const Args& a = *args;
#pragma clang loop unroll(disable)
  for (Int64 item = begin; item < end; ++item) {
    const Int64 row = item * kPanel;
    const Int64 num_rows = min(kPanel, a.num_rows - row);
    pack_row_values(a, row);
    pack_gradients(a, row);
    if (a.hidden_by_row) pack_hidden_by_row(a, row, a.hidden_by_row + row * dim(a));
    if (!a.hidden_by_col) continue;
#pragma clang loop unroll(disable)
    for (Int64 i = row; i < row + num_rows; ++i) {
#pragma clang loop unroll(disable)
      for (Int64 k = 0; k < dim(a); k += kPanel) {
        load_span(a.hidden, hidden_offset(a, i) + k * a.hidden_col_stride, a.hidden_col_stride, kX,
                  a.hidden_by_col + k * a.padded_rows + i * kPanel, min(kPanel, dim(a) - k),
                  kPanel);
      }
    }
  }
}

extern "C" void rlk_linear_logp_bwd_dz(const Args* args, Int64 begin, Int64 end, void*) {
  const Args& a = *args;
  alignas(64) float bias[kLeaf];
  const Int64 num_panels = a.padded_rows / kPanel;
  const Int64 groups = ceil_div(num_panels, a.panels_per_item);
#pragma clang loop unroll(disable)
  for (Int64 item = begin; item < end; ++item) {
    const Int64 v = item / groups * kLeaf;
    const Int64 first = item % groups * a.panels_per_item;
    const Int64 last = min(first + a.panels_per_item, num_panels);
    const Int64 cols = min(kLeaf, a.wave_cols - v);
#pragma clang loop unroll(disable) vectorize(disable)
    for (Int64 i = 0; i < cols; ++i) bias[i] = bias_at(a, a.wave_begin + v + i);
#pragma clang loop unroll(disable)
    for (Int64 k0 = a.kept_wave >= 0 ? dim(a) : 0; k0 < dim(a); k0 += kBlock) {
#pragma clang loop unroll(disable)
      for (Int64 panel = first; panel < last; ++panel) {
        multiply_block<Shape, Reading::kAlongPanel>(
            a.weight_wave + k0 * a.padded_wave + v * kPanel, a.padded_wave * kPanel,
            a.hidden_by_row + (panel * dim(a) + k0) * kPanel, min(kBlock, dim(a) - k0),
            k0 == 0 ? Start::kZero : Start::kAdd,
            a.grad_logits + (panel * a.padded_wave + v) * kPanel, cols,
            vectors_for(a.num_rows - panel * kPanel));
      }
    }
#pragma clang loop unroll(disable)
    for (Int64 panel = first; panel < last; ++panel) {
      gradient_of_panel(a, panel * kPanel, v, cols, bias,
                        a.grad_logits + (panel * a.padded_wave + v) * kPanel);
    }
  }
}

extern "C" void rlk_linear_logp_bwd_dh(const Args* args, Int64 begin, Int64 end, void*) {
  const Args& a = *args;
  const Int64 num_panels = a.padded_rows / kPanel;
#pragma clang loop unroll(disable)
  for (Int64 item = begin; item < end; ++item) {
    const Int64 k = item / num_panels * kPanel;
    const Int64 panel = item % num_panels;
    const Int64 row = panel * kPanel;
#pragma clang loop unroll(disable)
    for (Int64 v = 0; v < a.wave_cols; v += kBlock) {
      multiply_block<Shape, Reading::kAcrossPanel>(
          a.grad_logits + (panel * a.padded_wave + v) * kPanel, 0,
          a.weight_wave + k * a.padded_wave + v * kPanel, min(kBlock, a.wave_cols - v),
          a.wave_begin == a.segment_begin && v == 0 ? Start::kZero : Start::kContinue,
          a.grad_hidden_sum + k * a.total_rows + (a.first_row + row) * kPanel,
          min(kPanel, a.num_rows - row), vectors_for(dim(a) - k));
    }
  }
}

// Joins the sums of the segments that are complete: the last one's with the num_folds before it.
extern "C" void rlk_linear_logp_bwd_fold_dh(const Args* args, Int64 begin, Int64 end, void*) {
  const Args& a = *args;
  const Int64 size = ceil_div(dim(a), kPanel) * kPanel * a.total_rows;
#pragma clang loop unroll(disable)
  for (Int64 i = begin * kPanel * kPanel; i < end * kPanel * kPanel; i += kLanes) {
    float* at = a.grad_hidden_sum + i;
    VecF sum = load(at);
#pragma clang loop unroll(disable)
    for (Int64 fold = 0; fold < a.num_folds; ++fold) {
      at -= size;
      sum = load(at) + sum;
    }
    store(at, sum);
  }
}

// The sums of the chunks before.
extern "C" void rlk_linear_logp_bwd_load_sums(const Args* args, Int64 begin, Int64 end, void*) {
  const Args& a = *args;
#pragma clang loop unroll(disable)
  for (Int64 leaf = begin; leaf < end; ++leaf) {
#pragma clang loop unroll(disable)
    for (Int64 v = leaf * kLeaf; v < min((leaf + 1) * kLeaf, a.wave_cols); ++v) {
      const float* const from = a.weight_before + (a.wave_begin + v) * dim(a);
#pragma clang loop unroll(disable)
      for (Int64 k = 0; a.weight_before && k < dim(a); k += kLanes) {
        store(a.grad_weight_sum + k / kPanel * kPanel * a.padded_wave + v * kPanel + k % kPanel,
              load_some(from + k, dim(a) - k));
      }
#pragma clang loop unroll(disable) vectorize(disable)
      for (Int64 i = 0; a.bias_lanes && i < kPanel; ++i) {
        a.grad_bias_sum[v * kPanel + i] = bias_lane(a, v, i);
      }
    }
  }
}

extern "C" void rlk_linear_logp_bwd_dw(const Args* args, Int64 begin, Int64 end, void*) {
  const Args& a = *args;
  const Int64 leaves = ceil_div(a.wave_cols, kLeaf);
#pragma clang loop unroll(disable)
  for (Int64 item = begin; item < end; ++item) {
    const Int64 k = item / leaves * kPanel;
    const Int64 v = item % leaves * kLeaf;
#pragma clang loop unroll(disable)
    for (Int64 row = 0; row < a.num_rows; row += kBlock) {
      multiply_block<Shape, Reading::kAlongPanel>(
          a.grad_logits + (row / kPanel * a.padded_wave + v) * kPanel, a.padded_wave * kPanel,
          a.hidden_by_col + k * a.padded_rows + row * kPanel, min(kBlock, a.num_rows - row),
          a.first_row == 0 && row == 0 && !a.goes_on ? Start::kZero : Start::kContinue,
          a.grad_weight_sum + k * a.padded_wave + v * kPanel, min(kLeaf, a.wave_cols - v),
          vectors_for(dim(a) - k));
    }
  }
}

// Lane l of a column sums rows l, l + P, l + 2P, ...; padding rows are left out. Of a chunk they
// are the lanes from first_lane on, in a circle.
extern "C" void rlk_linear_logp_bwd_db(const Args* args, Int64 begin, Int64 end, void*) {
  const Args& a = *args;
#pragma clang loop unroll(disable)
  for (Int64 leaf = begin; leaf < end; ++leaf) {
#pragma clang loop unroll(disable)
    for (Int64 v = leaf * kLeaf; v < min((leaf + 1) * kLeaf, a.wave_cols); ++v) {
      float* const sum = a.grad_bias_sum + v * kPanel;
#pragma clang loop unroll(disable)
      for (Int64 row = 0; row < a.num_rows; row += kPanel) {
        const float* const dz = a.grad_logits + (row / kPanel * a.padded_wave + v) * kPanel;
        const bool from_zero = a.first_row == 0 && row == 0 && !a.goes_on;
#pragma clang loop unroll(disable) vectorize(disable)
        for (Int64 i = 0; i < kPanel; i += kLanes) {
          const VecF old = from_zero ? splat(0.0f) : load(sum + i);
          VecF add = splat(0.0f);
          if (a.num_rows - row >= i + kLanes) {
            add = load(dz + i);
          } else {
            alignas(64) float part[kLanes];
#pragma clang loop unroll(disable) vectorize(disable)
            for (Int64 l = 0; l < kLanes; ++l)
              part[l] = row + i + l < a.num_rows ? dz[i + l] : 0.0f;
            add = load(part);
          }
          store(sum + i, old + add);
        }
      }
    }
  }
}

extern "C" void rlk_linear_logp_bwd_store_dw(const Args* args, Int64 begin, Int64 end, void*) {
  const Args& a = *args;
#pragma clang loop unroll(disable)
  for (Int64 leaf = begin; leaf < end; ++leaf) {
#pragma clang loop unroll(disable)
    for (Int64 v = leaf * kLeaf; v < min((leaf + 1) * kLeaf, a.wave_cols); ++v) {
#pragma clang loop unroll(disable)
      for (Int64 k = 0; k < dim(a); k += kPanel) {
        const float* const sum = a.grad_weight_sum + k * a.padded_wave + v * kPanel;
        const Int64 count = min(kPanel, dim(a) - k);
        const Int64 to =
            (a.wave_begin + v) * a.grad_weight_row_stride + k * a.grad_weight_col_stride;
        if (!a.accumulates) {
          store_gradient(a.grad_weight, to, a.grad_weight_col_stride, a.grad_weight_type, sum,
                         count);
          continue;
        }
        float* const into = static_cast<float*>(a.grad_weight) + to;  // its columns are dense
#pragma clang loop unroll(disable)
        for (Int64 i = 0; i < count; i += kLanes) {
          store_some(into + i, load_some(into + i, count - i) + load(sum + i), count - i);
        }
      }
    }
  }
}

extern "C" void rlk_linear_logp_bwd_store_db(const Args* args, Int64 begin, Int64 end, void*) {
  const Args& a = *args;
#pragma clang loop unroll(disable)
  for (Int64 leaf = begin; leaf < end; ++leaf) {
#pragma clang loop unroll(disable)
    for (Int64 v = leaf * kLeaf; v < min((leaf + 1) * kLeaf, a.wave_cols); ++v) {
      float* lanes = a.grad_bias_sum + v * kPanel;
      if (a.bias_lanes) {
#pragma clang loop unroll(disable) vectorize(disable)
        for (Int64 i = 0; i < kPanel; ++i) bias_lane(a, v, i) = lanes[i];
        lanes = a.bias_lanes + (a.wave_begin + v) * kPanel;
      }
      if (!a.grad_bias) continue;
      float sum = 0.0f;
#pragma clang loop unroll(disable) vectorize(disable)
      for (Int64 i = 0; i < kPanel; ++i) sum = sum + lanes[i];
      store_element(a.grad_bias, (a.wave_begin + v) * a.grad_bias_stride, sum, a.bias_type);
    }
  }
}

extern "C" void rlk_linear_logp_bwd_store_dh(const Args* args, Int64 begin, Int64 end, void*) {
  const Args& a = *args;
#pragma clang loop unroll(disable)
  for (Int64 item = begin; item < end; ++item) {
#pragma clang loop unroll(disable)
    for (Int64 row = item * kPanel; row < min((item + 1) * kPanel, a.num_rows); ++row) {
      const Int64 to = output_row(a, row) * a.grad_hidden_row_stride;
#pragma clang loop unroll(disable)
      for (Int64 k = 0; k < dim(a); k += kPanel) {
        store_gradient(a.grad_hidden, to + k * a.grad_hidden_col_stride, a.grad_hidden_col_stride,
                       a.grad_hidden_type,
                       a.grad_hidden_sum + k * a.total_rows + (a.first_row + row) * kPanel,
                       min(kPanel, dim(a) - k));
      }
    }
  }
}

}  // namespace rlk
