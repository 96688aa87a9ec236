// SPDX-License-Identifier: Apache-2.0
// det_gemm on the CPU: out[r][c] = sum over k of a[r][k] * b[k][c] + bias[c], in fp32.
//
// Order: terms are cut into blocks of kBlock from term 0 on. A block is one chain from zero,
// s = fma(a[r][k], b[k][c], s), k ascending (levels without fma round the product, then add);
// blocks join in order, ((b0 + b1) + b2) + ..., where the sums continue out as (out + b0) + ...
// Then comes the bias, then one rounding.
//
// Constants:
//   kX  type of a and b: 1 fp32, 2 bf16, 3 fp16
//   kK  terms, or -1: run-time num_terms
//   kN  columns, or -1: run-time num_cols
//   kALanes, kBLanes, kOut, kTile  of CUDA alone
// A sum over tokens takes the generic variant: its terms are none of a model's sizes.
//
// Steps, for each strip of rows (cpu_args.h has the layouts):
//   pack  item: (pack_rows rows, a block of terms), terms fastest -> packed_a
//   main  item: (panels_per_item panels of columns, rows_per_item rows), rows fastest -> out; uses
//         the scratch
// Items are independent, so any split over threads gives the same bits.
//
// Operations: 2 * M * N * K flops. b is read once for each rows_per_item rows of a strip.
extern "C" const long long kX, kK, kN;

#include "../common/cpu/convert.h"
#include "../common/cpu/multiply.h"
#include "../common/cpu/transpose.h"
#include "cpu_args.h"

namespace rlk {
namespace {

struct Shape {
  static constexpr DetGemmCpuTile kTile = det_gemm_cpu_tile(kLanes);
  static constexpr int kTileRows = kTile.tile_rows;
  static constexpr Int64 kPanel = kTile.panel(), kWidth = kTile.block;
};
constexpr Int64 kPanel = Shape::kPanel;
constexpr Int64 kBlock = Shape::kTile.block;
constexpr int kVectors = Shape::kTile.tile_vectors;
static_assert(kVectors == 3 && kBlock % kPanel == 0);

using Args = DetGemmCpuArgs;

template <class T>
RLK_INLINE T min(T x, T y) {
  return x < y ? x : y;
}
RLK_INLINE Int64 ceil_div(Int64 x, Int64 y) { return (x + y - 1) / y; }
RLK_INLINE Int64 vectors_for(Int64 lanes) { return min<Int64>(kVectors, ceil_div(lanes, kLanes)); }

// One matrix [lines][terms of a line] packed into lines of kWidth floats, `step` floats apart: line
// i at to + i * step, `used` of its elements, zeros up to kWidth.
template <Int64 kWidth>
RLK_INLINE void pack_lines(const void* from, Int64 offset, Int64 line_stride, Int64 element_stride,
                           Int64 num_lines, Int64 used, float* to, Int64 step) {
  if (element_stride != 1 && line_stride == 1) {
    return transpose_lines<kWidth>(from, offset, element_stride, kX, num_lines, used, to, step);
  }
#pragma clang loop unroll(disable)
  for (Int64 i = 0; i < num_lines; ++i) {
    load_span(from, offset + i * line_stride, element_stride, kX, to + i * step, used, kWidth);
  }
}

RLK_INLINE void fill(float* to, Int64 count, float value) {
#pragma clang loop unroll(disable)
  for (Int64 i = 0; i < count; i += kLanes) store(to + i, splat(value));
}

RLK_INLINE void pack_a(const Args& a, Int64 num_terms, Int64 begin, Int64 end) {
  constexpr Int64 kRows = Shape::kTile.pack_rows;
  const Int64 num_blocks = ceil_div(num_terms, kBlock);
#pragma clang loop unroll(disable)
  for (Int64 item = begin; item < end; ++item) {
    const Int64 row = item / num_blocks * kRows, k = item % num_blocks * kBlock;
    const Int64 rows = min(kRows, a.strip_rows - row), padded = min(kRows, a.padded_rows - row);
    float* const to = a.packed_a + k * a.padded_rows + row * kBlock;
    if (a.a) {
      pack_lines<kBlock>(a.a, (a.first_row + row) * a.a_row_stride + k * a.a_term_stride,
                         a.a_row_stride, a.a_term_stride, rows, min(kBlock, num_terms - k), to,
                         kBlock);
    } else {
      fill(to, rows * kBlock, 1.0f);
    }
    fill(to + rows * kBlock, (padded - rows) * kBlock, 0.0f);
  }
}

// An item of main: rows of the strip and whole panels of columns, the last of which may be short.
struct Item {
  Int64 row, num_rows, col, num_cols;
};

// The sums of an item, to a matrix [rows_per_item][P] a panel. What all panels have in common, a
// block of the terms of a, stays in the second-level cache.
RLK_INLINE void multiply(const Args& a, Int64 num_terms, const Item& item, float* b, float* c) {
#pragma clang loop unroll(disable)
  for (Int64 k = 0; k < num_terms; k += kBlock) {
    const Int64 terms = min(kBlock, num_terms - k);
    const Start start = k == 0 && !a.accumulates ? Start::kZero : Start::kAdd;
#pragma clang loop unroll(disable)
    for (Int64 j = 0; j < item.num_cols; j += kPanel) {
      float* const panel = b + j * kBlock;
      pack_lines<kPanel>(a.b, k * a.b_term_stride + (item.col + j) * a.b_col_stride,
                         a.b_term_stride, a.b_col_stride, terms, min(kPanel, item.num_cols - j),
                         panel, kPanel);
      multiply_block<Shape, Reading::kAlongPanel>(
          a.packed_a + k * a.padded_rows + item.row * kBlock, 0, panel, terms, start,
          c + j * a.rows_per_item, item.num_rows, vectors_for(item.num_cols - j));
    }
  }
}

RLK_INLINE void load_bias(const Args& a, Int64 col, Int64 num_cols, float* bias) {
#pragma clang loop unroll(disable) vectorize(disable)
  for (Int64 j = 0; j < kPanel; ++j) {
    const bool real = a.bias && j < num_cols;
    bias[j] = real ? load_element(a.bias, (col + j) * a.bias_stride, a.bias_type) : 0.0f;
  }
}

// Sums of rows of one panel to out: bias, rounding.
RLK_INLINE void store_panel(const Args& a, Int64 all_cols, Int64 row, Int64 num_rows, Int64 col,
                            Int64 num_cols, float* c) {
  alignas(64) float bias[kPanel];
  if (a.bias) load_bias(a, col, num_cols, bias);
#pragma clang loop unroll(disable)
  for (Int64 i = 0; i < num_rows; ++i) {
    float* const line = c + i * kPanel;
    if (a.bias) {
#pragma clang loop unroll(full)
      for (Int64 j = 0; j < kPanel; j += kLanes) store(line + j, load(line + j) + load(bias + j));
    }
    store_span(a.out, (a.first_row + row + i) * all_cols + col, 1, a.out_type, line, num_cols);
  }
}

RLK_INLINE void run_main(const Args& a, Int64 num_terms, Int64 all_cols, Int64 begin, Int64 end,
                         float* scratch) {
  const Int64 cols_per_item = a.panels_per_item * kPanel;
  float* const b = scratch;
  float* const c = scratch + cols_per_item * kBlock;
  const Int64 groups = ceil_div(a.strip_rows, a.rows_per_item);
#pragma clang loop unroll(disable)
  for (Int64 i = begin; i < end; ++i) {
    const Int64 row = i % groups * a.rows_per_item, col = i / groups * cols_per_item;
    const Item item{row, min(a.rows_per_item, a.strip_rows - row), col,
                    min(cols_per_item, all_cols - col)};
    if (a.accumulates) {
#pragma clang loop unroll(disable)
      for (Int64 j = 0; j < item.num_cols; j += kPanel) {
#pragma clang loop unroll(disable)
        for (Int64 r = 0; r < item.num_rows; ++r) {
          load_span(a.out, (a.first_row + row + r) * all_cols + col + j, 1, kFloat32,
                    c + j * a.rows_per_item + r * kPanel, min(kPanel, item.num_cols - j), kPanel);
        }
      }
    }
    multiply(a, num_terms, item, b, c);
    // A tile's rows of all panels, one after another: whole lines of out, and few pages at a time.
#pragma clang loop unroll(disable)
    for (Int64 r = 0; r < item.num_rows; r += Shape::kTileRows) {
#pragma clang loop unroll(disable)
      for (Int64 j = 0; j < item.num_cols; j += kPanel) {
        store_panel(a, all_cols, row + r, min<Int64>(Shape::kTileRows, item.num_rows - r), col + j,
                    min(kPanel, item.num_cols - j), c + j * a.rows_per_item + r * kPanel);
      }
    }
  }
}

}  // namespace

extern "C" void rlk_det_gemm_fwd_pack(const Args* args, Int64 begin, Int64 end, void*) {
  pack_a(*args, kK >= 0 ? kK : args->num_terms, begin, end);
}
extern "C" void rlk_det_gemm_fwd_main(const Args* args, Int64 begin, Int64 end, void* scratch) {
  run_main(*args, kK >= 0 ? kK : args->num_terms, kN >= 0 ? kN : args->num_cols, begin, end,
           static_cast<float*>(scratch));
}

}  // namespace rlk
