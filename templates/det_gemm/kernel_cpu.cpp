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
//   pack  item: a panel of terms (of rows, where those are neighbours) -> packed_a
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
  static constexpr Int64 kPanel = kTile.panel();
};
constexpr Int64 kPanel = Shape::kPanel;
constexpr Int64 kBlock = Shape::kTile.block;
constexpr int kVectors = Shape::kTile.tile_vectors;
static_assert(kVectors == 3 && kBlock % kPanel == 0 && kPanel % Shape::kTileRows == 0);

using Args = DetGemmCpuArgs;

template <class T>
RLK_INLINE T min(T x, T y) {
  return x < y ? x : y;
}
RLK_INLINE Int64 ceil_div(Int64 x, Int64 y) { return (x + y - 1) / y; }
RLK_INLINE Int64 vectors_for(Int64 lanes) { return min<Int64>(kVectors, ceil_div(lanes, kLanes)); }

// One matrix [lines][terms of a line] packed into lines of P floats, `step` floats apart: line i at
// to + i * step, `used` of its elements, zeros up to P.
RLK_INLINE void pack_lines(const void* from, Int64 offset, Int64 line_stride, Int64 element_stride,
                           Int64 num_lines, Int64 used, float* to, Int64 step) {
  if (element_stride != 1 && line_stride == 1) {
    return transpose_lines<kPanel>(from, offset, element_stride, kX, num_lines, used, to, step);
  }
#pragma clang loop unroll(disable)
  for (Int64 i = 0; i < num_lines; ++i) {
    load_span(from, offset + i * line_stride, element_stride, kX, to + i * step, used, kPanel);
  }
}

RLK_INLINE void pack_ones(float* to, Int64 count) {
#pragma clang loop unroll(disable)
  for (Int64 i = 0; i < count; i += kLanes) store(to + i, splat(1.0f));
}

RLK_INLINE void pack_a(const Args& a, Int64 num_terms, Int64 begin, Int64 end) {
#pragma clang loop unroll(disable)
  for (Int64 item = begin; item < end; ++item) {
    const Int64 first = item * kPanel;
    if (a.along_rows) {
      float* const to = a.packed_a + first * num_terms;
      if (!a.a) {
        pack_ones(to, num_terms * kPanel);
        continue;
      }
      pack_lines(a.a, (a.first_row + first) * a.a_row_stride, a.a_term_stride, a.a_row_stride,
                 num_terms, min(kPanel, a.strip_rows - first), to, kPanel);
    } else {
      float* const to = a.packed_a + first * a.padded_rows;
      pack_lines(a.a, a.first_row * a.a_row_stride + first * a.a_term_stride, a.a_row_stride,
                 a.a_term_stride, a.strip_rows, min(kPanel, num_terms - first), to, kPanel);
#pragma clang loop unroll(disable)
      for (Int64 i = a.strip_rows * kPanel; i < a.padded_rows * kPanel; i += kLanes) {
        store(to + i, splat(0.0f));
      }
    }
  }
}

// An item of main: rows of the strip and whole panels of columns, the last of which may be short.
struct Item {
  Int64 row, num_rows, col, num_cols;
};

// Rows [first, first + num_rows) of a block of the item's terms, times a panel of b, to c.
RLK_INLINE void multiply_rows(const Args& a, Int64 num_terms, Int64 row, Int64 num_rows, Int64 k,
                              Int64 terms, const float* b, Start start, float* c, Int64 vectors) {
  if (!a.along_rows) {
    multiply_block<Shape, Reading::kAlongPanel>(a.packed_a + k * a.padded_rows + row * kPanel,
                                                a.padded_rows * kPanel, b, terms, start, c,
                                                num_rows, vectors);
    return;
  }
#pragma clang loop unroll(disable)
  for (Int64 i = 0; i < num_rows; i += kPanel) {
    multiply_block<Shape, Reading::kAcrossPanel>(a.packed_a + (row + i) * num_terms + k * kPanel, 0,
                                                 b, terms, start, c + i * kPanel,
                                                 min(kPanel, num_rows - i), vectors);
  }
}

// The sums of an item, to a matrix [rows_per_item][P] a panel. What of a block of terms meets all
// panels at once stays in the second-level cache.
RLK_INLINE void multiply(const Args& a, Int64 num_terms, const Item& item, float* b, float* c) {
  constexpr Int64 kRowsAtOnce = 4 * kPanel;
#pragma clang loop unroll(disable)
  for (Int64 k = 0; k < num_terms; k += kBlock) {
    const Int64 terms = min(kBlock, num_terms - k);
    const Start start = k == 0 && !a.accumulates ? Start::kZero : Start::kAdd;
#pragma clang loop unroll(disable)
    for (Int64 j = 0; j < item.num_cols; j += kPanel) {
      pack_lines(a.b, k * a.b_term_stride + (item.col + j) * a.b_col_stride, a.b_term_stride,
                 a.b_col_stride, terms, min(kPanel, item.num_cols - j), b + j * kBlock, kPanel);
    }
#pragma clang loop unroll(disable)
    for (Int64 i = 0; i < item.num_rows; i += kRowsAtOnce) {
#pragma clang loop unroll(disable)
      for (Int64 j = 0; j < item.num_cols; j += kPanel) {
        multiply_rows(a, num_terms, item.row + i, min(kRowsAtOnce, item.num_rows - i), k, terms,
                      b + j * kBlock, start, c + j * a.rows_per_item + i * kPanel,
                      vectors_for(item.num_cols - j));
      }
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

// Sums of one panel to out: bias, rounding.
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
#pragma clang loop unroll(disable)
    for (Int64 j = 0; j < item.num_cols; j += kPanel) {
      store_panel(a, all_cols, row, item.num_rows, col + j, min(kPanel, item.num_cols - j),
                  c + j * a.rows_per_item);
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
