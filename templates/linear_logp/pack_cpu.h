// SPDX-License-Identifier: Apache-2.0
// Constants and sizes of linear_logp's CPU kernels, and the steps that copy operands into panels.
#pragma once

extern "C" const long long kD;  // hidden size, or -1: run-time args->dim

#include "../common/cpu/convert.h"
#include "../common/cpu/multiply.h"
#include "../common/logp/cpu.h"
#include "cpu_args.h"

namespace rlk {
namespace {

struct Shape {
  static constexpr LinearLogpCpuTile kTile = linear_logp_cpu_tile(kLanes);
  static constexpr int kTileRows = kTile.tile_rows;
  static constexpr Int64 kPanel = kTile.panel(), kWidth = kPanel;
};
constexpr Int64 kPanel = Shape::kPanel;
constexpr Int64 kLeaf = Shape::kTile.leaf;
constexpr Int64 kBlock = Shape::kTile.block;
constexpr Int64 kTileRows = Shape::kTileRows;
constexpr int kVectors = Shape::kTile.tile_vectors;
static_assert(kVectors == 3 && kPanel % kTileRows == 0 && kLeaf % kTileRows == 0 &&
              kBlock % kPanel == 0);

using Args = LinearLogpCpuArgs;

RLK_INLINE Int64 dim(const Args& a) { return kD >= 0 ? kD : a.dim; }
RLK_INLINE Int64 vectors_for(Int64 lanes) { return min(kVectors, ceil_div(lanes, kLanes)); }

// Rows [row, row + kPanel) of the strip: lanes of the row-wise values, padded so that padding rows
// compute finite nonsense which nothing reads.
RLK_INLINE void pack_row_values(const Args& a, Int64 row) {
#pragma clang loop unroll(disable) vectorize(disable)
  for (Int64 i = row; i < row + kPanel; ++i) {
    const bool real = i < a.num_rows;
    a.lane_target[i] = real ? a.target[a.first_row + i] : -1;
    a.lane_scale[i] = real && a.inverse_temperature ? a.inverse_temperature[a.first_row + i] : 1.0f;
  }
}

RLK_INLINE Int64 hidden_offset(const Args& a, Int64 row) {
  const Int64 i = a.first_row + row;
  return a.hidden_offsets ? a.hidden_offsets[i] : i * a.hidden_row_stride;
}

// A panel of rows, transposed: dst[k][lane].
RLK_INLINE void pack_hidden_by_row(const Args& a, Int64 row, float* dst) {
  const Int64 lanes = min(kPanel, a.num_rows - row);
  const Int64 used = vectors_for(lanes) * kLanes;  // products leave the vectors beyond alone
  alignas(64) float span[kPanel];
#pragma clang loop unroll(disable)
  for (Int64 k0 = 0; k0 < dim(a); k0 += kPanel) {
    const Int64 n = min(kPanel, dim(a) - k0);
#pragma clang loop unroll(disable)
    for (Int64 lane = 0; lane < used; ++lane) {
      load_span(a.hidden,
                lane < lanes ? hidden_offset(a, row + lane) + k0 * a.hidden_col_stride : 0,
                a.hidden_col_stride, kX, span, lane < lanes ? n : 0, n);
#pragma clang loop unroll(disable) vectorize(disable)
      for (Int64 k = 0; k < n; ++k) dst[(k0 + k) * kPanel + lane] = span[k];
    }
  }
}

// Columns [k0, k0 + num_terms) of rows [v0, v0 + cols) of the weight, as a panel matrix of `rows`
// rows (only whole tiles are written).
RLK_INLINE void pack_weight(const Args& a, Int64 v0, Int64 cols, Int64 k0, Int64 num_terms,
                            Int64 rows, float* dst) {
  const Int64 padded = ceil_div(cols, kTileRows) * kTileRows;
#pragma clang loop unroll(disable)
  for (Int64 v = 0; v < padded; ++v) {
#pragma clang loop unroll(disable)
    for (Int64 k = 0; k < num_terms; k += kPanel) {
      const Int64 n = v < cols ? min(kPanel, num_terms - k) : 0;
      const Int64 from =
          v < cols ? (v0 + v) * a.weight_row_stride + (k0 + k) * a.weight_col_stride : 0;
      float* const to = dst + k * rows + v * kPanel;
      if (n == kPanel && a.weight_col_stride == 1) {
        const char* const src = static_cast<const char*>(a.weight) + from * size_of(kX);
#pragma clang loop unroll(full)
        for (int j = 0; j < kVectors; ++j) {
          store(to + j * kLanes, load_vector(src + j * kLanes * size_of(kX), kX));
        }
      } else {
        load_span(a.weight, from, a.weight_col_stride, kX, to, n, kPanel);
      }
    }
  }
}

// What pack_weight reads `ahead` blocks later, to be fetched over num_calls calls.
RLK_INLINE Prefetch prefetch_weight(const Args& a, Int64 v0, Int64 k0, Int64 ahead, Int64 chunk,
                                    Int64 num_calls) {
  Prefetch p;
  const Int64 blocks = ceil_div(dim(a), kBlock);
  const Int64 block = k0 / kBlock + ahead;
  k0 = block % blocks * kBlock;
  v0 += block / blocks * chunk;
  if (v0 >= vocab(a) || a.weight_col_stride != 1) return p;
  p.row = static_cast<const char*>(a.weight) + (v0 * a.weight_row_stride + k0) * size_of(kX);
  p.step = a.weight_row_stride * size_of(kX);
  p.num_rows = min(chunk, vocab(a) - v0);
  p.row_bytes = min(kBlock, dim(a) - k0) * size_of(kX);
  p.bytes_per_call = ceil_div(chunk * p.row_bytes, num_calls);
  return p;
}

// Of the panel of `kept` that begins at row `row` of those active in the forward: [columns][width],
// the last panel being narrower.
struct KeptPanel {
  float* data;
  Int64 width;
};
RLK_INLINE KeptPanel kept_panel(const Args& a, Int64 row, Int64 col) {
  const Int64 width = min(kPanel, a.kept_rows - row);
  return {a.kept + row * a.kept_segments * a.kept_pitch + col * width, width};
}

// Logits of one vector of rows over a leaf, in place of the dot products in c; gives their maximum,
// which passes over a NaN: the sum finds it.
RLK_INLINE VecF logits_of_leaf(const Args& a, float* c, const float* bias, Int64 cols, VecF scale) {
  VecF max = splat(-__builtin_inff());
#pragma clang loop unroll(disable)
  for (Int64 v = 0; v < cols; ++v) {
    const VecF z = logit(a, load(c + v * kPanel), bias[v], scale).z;
    store(c + v * kPanel, z);
    max = select(z > max, z, max);
  }
  return max;
}

RLK_INLINE float bias_at(const Args& a, Int64 v) {
  if (a.bias_type == kNone) return 0.0f;
  return load_element(a.bias, v * a.bias_stride, a.bias_type);
}

}  // namespace
}  // namespace rlk
