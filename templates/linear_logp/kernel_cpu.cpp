// SPDX-License-Identifier: Apache-2.0
// linear_logp on the CPU: log-probabilities of given targets, and their gradients.
//
//   z[r][v]  = (sum_k hidden[r][k] * weight[v][k] + bias[v]) * inverse_temperature[r]
//   logp[r]  = (z[r][target] - max_v z) - log(sum_v exp(z - max))
//   dZ[r][v] = grad[r] * inverse_temperature[r] * (1[v == target] - exp((z - max) - log_sum))
//   dhidden = dZ * weight, dweight = dZ^T * hidden, dbias[v] = sum_r dZ[r][v]
//
// Constants, initialized by the JIT; every other choice is made by the level (cpu_args.h):
//   kX  type of hidden and weight: 1 fp32, 2 bf16, 3 fp16; never -1
//   kV  vocabulary size, or -1: run-time args->vocab
//   kD  hidden size, or -1: run-time args->dim
//
// Work comes in strips of rows and, in the backward, waves of vocabulary. P is the panel width, a
// leaf is kLeaf columns of vocabulary. An entry does items [begin, end); items are independent, so
// any split over threads gives the same bits. Steps run in this order, each after the one before:
//
//   forward, for each strip:            item
//     rlk_linear_logp_fwd_pack            a panel of rows -> hidden_by_row, lane_target, lane_scale
//     rlk_linear_logp_fwd_main            (leaf, group of panels_per_item panels), groups fastest
//                                         -> partials, lane_target_logit; uses the scratch
//     rlk_linear_logp_fwd_merge           a panel of rows -> logp, row_max, row_log_sum
//   backward, for each wave, for each strip:
//     rlk_linear_logp_bwd_pack_weight     kLeaf columns -> weight_wave (once a wave)
//     rlk_linear_logp_bwd_pack_hidden     a panel of rows -> hidden_by_row, hidden_by_col, lane_*
//     rlk_linear_logp_bwd_dz              as fwd_main, leaves of the wave -> grad_logits
//     rlk_linear_logp_bwd_dh              (panel of dim, panel of rows), rows fastest
//                                         -> grad_hidden_sum
//     rlk_linear_logp_bwd_dw              (panel of dim, leaf of the wave), leaves fastest
//                                         -> grad_weight_sum
//     rlk_linear_logp_bwd_db              leaf of the wave -> grad_bias_sum
//   after the strips of a wave: bwd_store_dw, bwd_store_db (item: leaf of the wave); after all
//   waves, as one strip of all rows: bwd_store_dh (item: a panel of rows).
// Only fwd_main needs scratch. Workspace is described at LinearLogpCpuArgs.
//
// Operations: forward 2*N*V*D flops, backward 6*N*V*D. The weight is read once a strip.
#include "../common/cpu/convert.h"
#include "../common/cpu/math.h"
#include "../common/cpu/multiply.h"
#include "../common/cpu/vector.h"
#include "cpu_args.h"

extern "C" {
extern const long long kX;
extern const long long kV;
extern const long long kD;
}

namespace rlk {
namespace {

struct Shape {
  static constexpr LinearLogpCpuTile kTile = linear_logp_cpu_tile(kLanes);
  static constexpr int kTileRows = kTile.tile_rows;
  static constexpr Int64 kPanel = kTile.panel();
};
constexpr Int64 kPanel = Shape::kPanel;
constexpr Int64 kLeaf = Shape::kTile.leaf;
constexpr Int64 kBlock = Shape::kTile.block;
constexpr Int64 kTileRows = Shape::kTileRows;
constexpr int kVectors = Shape::kTile.tile_vectors;
static_assert(kVectors == 3 && kPanel % kTileRows == 0 && kLeaf % kTileRows == 0 &&
              kBlock % kPanel == 0);

using Args = LinearLogpCpuArgs;

RLK_INLINE Int64 vocab(const Args& a) { return kV >= 0 ? kV : a.vocab; }
RLK_INLINE Int64 dim(const Args& a) { return kD >= 0 ? kD : a.dim; }
RLK_INLINE Int64 min(Int64 a, Int64 b) { return a < b ? a : b; }
RLK_INLINE Int64 ceil_div(Int64 a, Int64 b) { return (a + b - 1) / b; }
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

RLK_INLINE Int64 output_row(const Args& a, Int64 row) {
  const Int64 i = a.first_row + row;
  return a.rows ? a.rows[i] : i;
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

RLK_INLINE float bias_at(const Args& a, Int64 v) {
  if (a.bias_type == kTypeNone) return 0.0f;
  return load_element(a.bias, v * a.bias_stride, a.bias_type);
}

// The logit from the dot product. Softcap and logit scale belong here, before the temperature.
RLK_INLINE VecF logit(VecF dot, float bias, VecF scale) { return (dot + bias) * scale; }

// Logits of one vector of rows over a leaf: z replaces the dot products in c; gives the leaf's
// partial. Order: maximum, then exp terms summed in four chains (column % 4), (0 + 1) + (2 + 3).
RLK_INLINE void reduce_leaf(float* c, const float* bias, Int64 cols, VecF scale, float* out_max,
                            float* out_sum) {
  VecF max = splat(-__builtin_inff());
#pragma clang loop unroll(disable)
  for (Int64 v = 0; v < cols; ++v) {
    const VecF z = logit(load(c + v * kPanel), bias[v], scale);
    store(c + v * kPanel, z);
    max = select(z > max, z, max);  // a NaN is passed over here and found by the sum
  }
  // A leaf of -inf alone: take 0 as its maximum, so that terms are exp(-inf) = 0 and not NaN.
  const VecF base = select(max == -__builtin_inff(), splat(0.0f), max);
  VecF sum[4] = {splat(0.0f), splat(0.0f), splat(0.0f), splat(0.0f)};
  const Int64 whole = cols & ~Int64{3};
#pragma clang loop unroll(disable)
  for (Int64 v = 0; v < whole; v += 4) {
#pragma clang loop unroll(full)
    for (int u = 0; u < 4; ++u) sum[u] = sum[u] + exp(load(c + (v + u) * kPanel) - base);
  }
#pragma clang loop unroll(disable)
  for (Int64 v = whole; v < cols; ++v) sum[0] = sum[0] + exp(load(c + v * kPanel) - base);
  store(out_max, max);
  store(out_sum, (sum[0] + sum[1]) + (sum[2] + sum[3]));
}

// dZ of one vector of rows over a leaf, in place of the dot products in c.
RLK_INLINE void gradient_of_leaf(float* c, const float* bias, Int64 cols, VecF scale, VecF max,
                                 VecF log_sum, VecF grad, VecI target) {
  const VecF none = splat(-__builtin_inff());
#pragma clang loop unroll(disable)
  for (Int64 v = 0; v < cols; ++v) {
    const VecF z = logit(load(c + v * kPanel), bias[v], scale);
    const VecF p = exp((z - max) - log_sum);
    const VecF hit = select(target == static_cast<Int32>(v), splat(1.0f), splat(0.0f));
    // A column of -inf has no gradient, not even as the target; a row of only -inf stays NaN.
    const VecF dz = select((z == none) & (max != none), splat(0.0f), grad * (hit - p));
    store(c + v * kPanel, dz);
  }
}

// One partial merged: sums of all leaves, ascending, each scaled to the row's maximum.
RLK_INLINE void merge_rows(const Args& a, Int64 row) {
  const Int64 leaves = ceil_div(vocab(a), kLeaf);
  VecF max = splat(-__builtin_inff());
#pragma clang loop unroll(disable)
  for (Int64 leaf = 0; leaf < leaves; ++leaf) {
    const VecF m = load(a.partial_max + leaf * a.padded_rows + row);
    max = select(m > max, m, max);
  }
  const VecF base = select(max == -__builtin_inff(), splat(0.0f), max);
  VecF sum = splat(0.0f);
#pragma clang loop unroll(disable)
  for (Int64 leaf = 0; leaf < leaves; ++leaf) {
    const VecF m = load(a.partial_max + leaf * a.padded_rows + row);
    const VecF s = load(a.partial_sum + leaf * a.padded_rows + row);
    sum = fma(s, exp(m - base), sum);
  }
  alignas(64) float out[3][kLanes];
  const VecF log_sum = log(sum);
  store(out[0], (load(a.lane_target_logit + row) - max) - log_sum);
  store(out[1], max);
  store(out[2], log_sum);
#pragma clang loop unroll(disable) vectorize(disable)
  for (Int64 i = 0; i < min(kLanes, a.num_rows - row); ++i) {
    const Int64 to = output_row(a, row + i);
    a.logp[to] = out[0][i];
    if (a.row_max) a.row_max[to] = out[1][i];
    if (a.row_log_sum) a.row_log_sum[to] = out[2][i];
  }
}

}  // namespace

extern "C" void rlk_linear_logp_fwd_pack(const Args* args, Int64 begin, Int64 end, void*) {
  const Args& a = *args;
#pragma clang loop unroll(disable)
  for (Int64 item = begin; item < end; ++item) {
    const Int64 row = item * kPanel;
    pack_row_values(a, row);
    pack_hidden_by_row(a, row, a.hidden_by_row + row * dim(a));
  }
}

extern "C" void rlk_linear_logp_fwd_main(const Args* args, Int64 begin, Int64 end, void* scratch) {
  const Args& a = *args;
  float* const weight = static_cast<float*>(scratch);
  float* const logits = weight + kLeaf * kBlock;
  float* const bias = logits + a.panels_per_item * kLeaf * kPanel;
  const Int64 num_panels = a.padded_rows / kPanel;
  const Int64 groups = ceil_div(num_panels, a.panels_per_item);
  // Weight rows packed at once. With few panels to use them, a tile's rows: they stay in the
  // first-level cache and memory is read row by row, as it streams best.
  const bool few = a.panels_per_item <= 2;
  const Int64 chunk = few ? kTileRows : kLeaf;
#pragma clang loop unroll(disable)
  for (Int64 item = begin; item < end; ++item) {
    const Int64 leaf = item / groups;
    const Int64 first = item % groups * a.panels_per_item;
    const Int64 last = min(first + a.panels_per_item, num_panels);
    const Int64 v0 = leaf * kLeaf;
    const Int64 cols = min(kLeaf, vocab(a) - v0);
#pragma clang loop unroll(disable)
    for (Int64 v = 0; v < cols; v += chunk) {
      const Int64 n = min(chunk, cols - v);
#pragma clang loop unroll(disable)
      for (Int64 k0 = 0; k0 < dim(a); k0 += kBlock) {
        const Int64 num_terms = min(kBlock, dim(a) - k0);
        pack_weight(a, v0 + v, n, k0, num_terms, chunk, weight);
        Prefetch next = prefetch_weight(a, v0 + v, k0, few ? 2 : 1, chunk,
                                        (last - first) * ceil_div(n, kTileRows));
#pragma clang loop unroll(disable)
        for (Int64 panel = first; panel < last; ++panel) {
          multiply_block<Shape, Reading::kAlongPanel>(
              weight, chunk * kPanel, a.hidden_by_row + (panel * dim(a) + k0) * kPanel, num_terms,
              k0 == 0 ? Start::kZero : Start::kAdd, logits + ((panel - first) * kLeaf + v) * kPanel,
              n, vectors_for(a.num_rows - panel * kPanel), &next);
        }
      }
    }
#pragma clang loop unroll(disable) vectorize(disable)
    for (Int64 v = 0; v < cols; ++v) bias[v] = bias_at(a, v0 + v);
#pragma clang loop unroll(disable)
    for (Int64 panel = first; panel < last; ++panel) {
      float* const c = logits + (panel - first) * kLeaf * kPanel;
      const Int64 row = panel * kPanel;
      const Int64 vectors = vectors_for(a.num_rows - row);
#pragma clang loop unroll(disable)
      for (Int64 j = 0; j < vectors; ++j) {
        const Int64 at = leaf * a.padded_rows + row + j * kLanes;
        reduce_leaf(c + j * kLanes, bias, cols, load(a.lane_scale + row + j * kLanes),
                    a.partial_max + at, a.partial_sum + at);
      }
#pragma clang loop unroll(disable) vectorize(disable)
      for (Int64 i = 0; i < min(kPanel, a.num_rows - row); ++i) {
        const Int64 v = a.lane_target[row + i] - v0;
        if (v >= 0 && v < cols) a.lane_target_logit[row + i] = c[v * kPanel + i];
      }
    }
  }
}

extern "C" void rlk_linear_logp_fwd_merge(const Args* args, Int64 begin, Int64 end, void*) {
  const Args& a = *args;
#pragma clang loop unroll(disable)
  for (Int64 item = begin; item < end; ++item) {
#pragma clang loop unroll(disable)
    for (Int64 row = item * kPanel; row < min((item + 1) * kPanel, a.num_rows); row += kLanes) {
      merge_rows(a, row);
    }
  }
}

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
      a.lane_grad[i] = real ? a.grad[a.first_row + i] * a.lane_scale[i] : 0.0f;
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
        gradient_of_leaf(a.grad_logits + (panel * a.padded_wave + v) * kPanel + j * kLanes, bias,
                         cols, load(a.lane_scale + row), load(a.lane_max + row),
                         load(a.lane_log_sum + row), load(a.lane_grad + row),
                         *reinterpret_cast<const VecI*>(target));
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
          a.wave_begin == 0 && v == 0 ? Start::kZero : Start::kContinue,
          a.grad_hidden_sum + k * a.total_rows + (a.first_row + row) * kPanel,
          min(kPanel, a.num_rows - row), vectors_for(dim(a) - k));
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
