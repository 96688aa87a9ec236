// SPDX-License-Identifier: Apache-2.0
// The backward: dZ of each leaf, the products that sum it up, and the stores of the sums.
#pragma once

#include "pack_cpu.h"

namespace rlk {
namespace {

// dZ of one vector of rows over a leaf, in place of the dot products in c. `target` is the column
// of the target in the leaf.
RLK_INLINE void gradient_of_leaf(const Args& a, Int64 row, float* c, const float* bias, Int64 cols,
                                 VecI target) {
  const VecF scale = load(a.lane_scale + row);
  GradientValues row_values{load(a.lane_max + row), load(a.lane_log_sum + row),
                            load(a.lane_grad + row), load(a.lane_grad_rest + row)};
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

RLK_INLINE float scaled_grad(const Args& a, const float* grad, Int64 i) {
  return scaled_grad(a, grad, a.first_row + i, a.lane_scale[i]);
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
#pragma clang loop unroll(disable) vectorize(disable)
    for (Int64 i = row; i < row + kPanel; ++i) {
      const bool real = i < a.num_rows;
      const Int64 from = real ? output_row(a, i) : 0;
      a.lane_max[i] = real ? a.row_max[from] : 0.0f;
      a.lane_log_sum[i] = real ? a.row_log_sum[from] : 0.0f;
      a.lane_grad[i] = real ? scaled_grad(a, a.grad, i) : 0.0f;
      a.lane_grad_rest[i] = real ? scaled_grad(a, a.grad_lse, i) - a.lane_grad[i] : 0.0f;
      if (!has_entropy_grad(a)) continue;
      a.lane_grad_entropy[i] = real ? scaled_grad(a, a.grad_entropy, i) : 0.0f;
      a.lane_entropy[i] = real ? a.entropy[from] : 0.0f;
    }
    pack_hidden_by_row(a, row, a.hidden_by_row + row * dim(a));
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
    for (Int64 k0 = 0; k0 < dim(a); k0 += kBlock) {
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
      const Int64 vectors = vectors_for(a.num_rows - panel * kPanel);
#pragma clang loop unroll(disable)
      for (Int64 j = 0; j < vectors; ++j) {
        const Int64 row = panel * kPanel + j * kLanes;
        // Column of the target within this leaf, or -1.
        alignas(64) Int32 target[kLanes];
#pragma clang loop unroll(disable) vectorize(disable)
        for (Int64 i = 0; i < kLanes; ++i) {
          const Int64 t = a.lane_target[row + i] - (a.wave_begin + v);
          target[i] = t >= 0 && t < cols ? static_cast<Int32>(t) : -1;
        }
        gradient_of_leaf(a, row, a.grad_logits + (panel * a.padded_wave + v) * kPanel + j * kLanes,
                         bias, cols, *reinterpret_cast<const VecI*>(target));
      }
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
          a.first_row == 0 && row == 0 ? Start::kZero : Start::kContinue,
          a.grad_weight_sum + k * a.padded_wave + v * kPanel, min(kLeaf, a.wave_cols - v),
          vectors_for(dim(a) - k));
    }
  }
}

// Lane l of a column sums rows l, l + P, l + 2P, ...; padding rows are left out.
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
        const bool from_zero = a.first_row == 0 && row == 0;
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
        store_span(a.grad_weight,
                   (a.wave_begin + v) * a.grad_weight_row_stride + k * a.grad_weight_col_stride,
                   a.grad_weight_col_stride, kX, a.grad_weight_sum + k * a.padded_wave + v * kPanel,
                   min(kPanel, dim(a) - k));
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
      float sum = 0.0f;
#pragma clang loop unroll(disable) vectorize(disable)
      for (Int64 i = 0; i < kPanel; ++i) sum = sum + a.grad_bias_sum[v * kPanel + i];
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
        store_span(a.grad_hidden, to + k * a.grad_hidden_col_stride, a.grad_hidden_col_stride, kX,
                   a.grad_hidden_sum + k * a.total_rows + (a.first_row + row) * kPanel,
                   min(kPanel, dim(a) - k));
      }
    }
  }
}

}  // namespace rlk
