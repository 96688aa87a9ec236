// SPDX-License-Identifier: Apache-2.0
// Matrix product of panel matrices: C[rows][P] (+)= A[rows][k] * B[k][P], in fp32.
//
// A panel matrix [cols/P][rows][P] keeps P columns (the lanes of one register tile) together, row
// after row, so that a tile walks dense memory: no large strides, no 4 KiB aliasing, no edge
// copies. B and C are one panel. A is read in one of two ways:
//   kAlongPanel:  terms run along the lanes of A's panels: A(i, k) = a[k / P * step + i * P + k %
//   P] kAcrossPanel: terms run down the rows of A's panel:    A(i, k) = a[k * P + i]
// A register tile of kTileRows x kTileVectors vectors stays in registers over up to kBlock terms,
// during which B's block stays in the first-level cache for all rows.
//
// The order of additions of an element of C is that of k alone; it does not depend on rows, on the
// number of vectors in use or on the lane.
//   kChain: one chain: C = fma(A(.., k-1), B, ... fma(A(.., 0), B, C))
//   kBlocks: a chain from zero for each kBlock terms, whose sum is then added to C.
#pragma once

#include "vector.h"

namespace rlk {

enum class Reading { kAlongPanel, kAcrossPanel };
enum class Order { kChain, kBlocks };

template <typename Shape, Reading kReading, Order kOrder, int kVectors>
RLK_INLINE void multiply_tile(const float* a, __INT64_TYPE__ a_panel_step, const float* b,
                              __INT64_TYPE__ num_terms, bool from_zero, float* c) {
  constexpr int kRows = Shape::kTileRows;
  constexpr __INT64_TYPE__ kPanel = Shape::kPanel;
  constexpr __INT64_TYPE__ kRowStep = kReading == Reading::kAlongPanel ? kPanel : 1;
  constexpr __INT64_TYPE__ kTermStep = kReading == Reading::kAlongPanel ? 1 : kPanel;
  VecF sum[kRows][kVectors];
  const bool load_c = kOrder == Order::kChain && !from_zero;
#pragma clang loop unroll(full)
  for (int i = 0; i < kRows; ++i) {
#pragma clang loop unroll(full)
    for (int j = 0; j < kVectors; ++j) sum[i][j] = splat(0.0f);
  }
  if (load_c) {
#pragma clang loop unroll(full)
    for (int i = 0; i < kRows; ++i) {
#pragma clang loop unroll(full)
      for (int j = 0; j < kVectors; ++j) sum[i][j] = load(c + i * kPanel + j * kLanes);
    }
  }
#pragma clang loop unroll(disable)
  while (num_terms > 0) {
    const __INT64_TYPE__ n = num_terms < kPanel ? num_terms : kPanel;
    const float* p = a;
#pragma clang loop unroll(disable)
    for (__INT64_TYPE__ k = 0; k < n; ++k) {
      VecF bv[kVectors];
#pragma clang loop unroll(full)
      for (int j = 0; j < kVectors; ++j) bv[j] = load(b + j * kLanes);
#pragma clang loop unroll(full)
      for (int i = 0; i < kRows; ++i) {
        const VecF av = splat(p[i * kRowStep]);
#pragma clang loop unroll(full)
        for (int j = 0; j < kVectors; ++j) sum[i][j] = fma(av, bv[j], sum[i][j]);
      }
      p += kTermStep;
      b += kPanel;
    }
    a += kReading == Reading::kAlongPanel ? a_panel_step : kPanel * kPanel;
    num_terms -= n;
  }
  const bool add_c = kOrder == Order::kBlocks && !from_zero;
#pragma clang loop unroll(full)
  for (int i = 0; i < kRows; ++i) {
#pragma clang loop unroll(full)
    for (int j = 0; j < kVectors; ++j) {
      float* const at = c + i * kPanel + j * kLanes;
      store(at, add_c ? load(at) + sum[i][j] : sum[i][j]);
    }
  }
}

// One block (num_terms <= kBlock) for all rows of A; rows are rounded up to whole tiles, which A
// and C must have room for. num_vectors: how many vectors of B's and C's panel hold columns in use.
template <typename Shape, Reading kReading, Order kOrder>
__attribute__((noinline)) static void multiply_block(const float* a, __INT64_TYPE__ a_panel_step,
                                                     const float* b, __INT64_TYPE__ num_terms,
                                                     bool from_zero, float* c,
                                                     __INT64_TYPE__ num_rows,
                                                     __INT64_TYPE__ num_vectors) {
  constexpr __INT64_TYPE__ kPanel = Shape::kPanel;
  constexpr __INT64_TYPE__ kRowStep = kReading == Reading::kAlongPanel ? kPanel : 1;
#pragma clang loop unroll(disable)
  for (__INT64_TYPE__ i = 0; i < num_rows; i += Shape::kTileRows) {
    const float* const ai = a + i * kRowStep;
    float* const ci = c + i * kPanel;
    if (num_vectors == 1) {
      multiply_tile<Shape, kReading, kOrder, 1>(ai, a_panel_step, b, num_terms, from_zero, ci);
    } else if (num_vectors == 2) {
      multiply_tile<Shape, kReading, kOrder, 2>(ai, a_panel_step, b, num_terms, from_zero, ci);
    } else {
      multiply_tile<Shape, kReading, kOrder, 3>(ai, a_panel_step, b, num_terms, from_zero, ci);
    }
  }
}

}  // namespace rlk
