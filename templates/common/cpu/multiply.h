// SPDX-License-Identifier: Apache-2.0
// Matrix product of panel matrices: C[rows][P] (+)= A[rows][k] * B[k][P], in fp32.
//
// A panel matrix [cols/P][rows][P] keeps P columns (the lanes of one register tile) together, row
// after row, so that a tile walks dense memory: no large strides, no 4 KiB aliasing, no edge
// copies. B and C are one panel. A is read in one of two ways:
//   kAlongPanel:  terms run along the lanes of A's panels, which have a width W = kWidth of their
//                 own:                        A(i, k) = a[k / W * step + i * W + k % W]
//   kAcrossPanel: terms run down the rows of A's panel:     A(i, k) = a[k * P + i]
// A register tile of kTileRows x kTileVectors vectors stays in registers over up to kBlock terms,
// during which B's block stays in the first-level cache for all rows. What the next tile reads of
// A's panels is asked for meanwhile; it comes in without a wait where W is a whole block.
//
// The order of additions of an element of C is that of k alone; it does not depend on rows, on the
// number of vectors in use or on the lane.
//   kZero:     a chain from zero:    C = fma(A(.., k - 1), B, ... fma(A(.., 0), B, 0))
//   kContinue: the chain goes on:    C = fma(A(.., k - 1), B, ... fma(A(.., 0), B, C))
//   kAdd:      a chain from zero is added: C = C + (...)
#pragma once

#include "vector.h"

namespace rlk {

enum class Reading { kAlongPanel, kAcrossPanel };
enum class Start { kZero, kContinue, kAdd };

template <typename Shape, Reading kReading, int kVectors>
RLK_INLINE void multiply_tile(const float* a, __INT64_TYPE__ a_panel_step, const float* b,
                              __INT64_TYPE__ num_terms, Start start, float* c) {
  constexpr int kRows = Shape::kTileRows, kUnrolled = 4;
  constexpr bool kIsAlong = kReading == Reading::kAlongPanel;
  constexpr __INT64_TYPE__ kPanel = Shape::kPanel, kWidth = kIsAlong ? Shape::kWidth : kPanel;
  constexpr __INT64_TYPE__ kRowStep = kIsAlong ? kWidth : 1, kTermStep = kIsAlong ? 1 : kPanel;
  VecF sum[kRows][kVectors];
#pragma clang loop unroll(full)
  for (int i = 0; i < kRows; ++i) {
#pragma clang loop unroll(full)
    for (int j = 0; j < kVectors; ++j) sum[i][j] = splat(0.0f);
  }
  if (start == Start::kContinue) {
#pragma clang loop unroll(full)
    for (int i = 0; i < kRows; ++i) {
#pragma clang loop unroll(full)
      for (int j = 0; j < kVectors; ++j) sum[i][j] = load(c + i * kPanel + j * kLanes);
    }
  }
  const float* p = a;
  const auto add_term = [&]() __attribute__((always_inline)) {
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
  };
#pragma clang loop unroll(disable)
  while (num_terms > 0) {
    const __INT64_TYPE__ n = num_terms < kWidth ? num_terms : kWidth;
    const char* next = reinterpret_cast<const char*>(a + kRows * kRowStep);
    p = a;
    __INT64_TYPE__ k = 0;
#pragma clang loop unroll(disable)
    for (; k + kUnrolled <= n; k += kUnrolled) {
      add_term();
      add_term();
      add_term();
      add_term();
      constexpr int kBytes = kIsAlong ? kRows * kUnrolled * int{sizeof(float)} : 0;
      if constexpr (kBytes > 0) __builtin_prefetch(next, 0, 3);
      if constexpr (kBytes > 64) __builtin_prefetch(next + 64, 0, 3);
      next += kBytes;
    }
#pragma clang loop unroll(disable)
    for (; k < n; ++k) add_term();
    a += kIsAlong ? a_panel_step : kPanel * kPanel;
    num_terms -= n;
  }
  if (start == Start::kAdd) {
#pragma clang loop unroll(full)
    for (int i = 0; i < kRows; ++i) {
#pragma clang loop unroll(full)
      for (int j = 0; j < kVectors; ++j) {
        sum[i][j] = load(c + i * kPanel + j * kLanes) + sum[i][j];
      }
    }
  }
#pragma clang loop unroll(full)
  for (int i = 0; i < kRows; ++i) {
#pragma clang loop unroll(full)
    for (int j = 0; j < kVectors; ++j) store(c + i * kPanel + j * kLanes, sum[i][j]);
  }
}

// Walks num_rows rows of memory, `step` bytes apart, and asks for a few lines at each call, so that
// rows needed soon come in while the product runs.
struct Prefetch {
  const char* row = nullptr;
  __INT64_TYPE__ step = 0;
  __INT64_TYPE__ num_rows = 0;
  __INT64_TYPE__ row_bytes = 0;
  __INT64_TYPE__ at = 0;
  __INT64_TYPE__ bytes_per_call = 0;

  __attribute__((always_inline)) void operator()() {
    const __INT64_TYPE__ line = 64;
#pragma clang loop unroll(disable)
    for (__INT64_TYPE__ done = 0; done < bytes_per_call && num_rows > 0; done += line) {
      __builtin_prefetch(row + at, 0, 2);
      at += line;
      if (at >= row_bytes) {
        at = 0;
        row += step;
        --num_rows;
      }
    }
  }
};

// One block (num_terms <= kBlock) for all rows of A; rows are rounded up to whole tiles, which A
// and C must have room for. num_vectors: how many vectors of B's and C's panel hold columns in use.
template <typename Shape, Reading kReading>
__attribute__((noinline)) static void multiply_block(const float* a, __INT64_TYPE__ a_panel_step,
                                                     const float* b, __INT64_TYPE__ num_terms,
                                                     Start start, float* c, __INT64_TYPE__ num_rows,
                                                     __INT64_TYPE__ num_vectors,
                                                     Prefetch* prefetch = nullptr) {
  constexpr __INT64_TYPE__ kPanel = Shape::kPanel;
  constexpr __INT64_TYPE__ kRowStep = kReading == Reading::kAlongPanel ? Shape::kWidth : 1;
#pragma clang loop unroll(disable)
  for (__INT64_TYPE__ i = 0; i < num_rows; i += Shape::kTileRows) {
    if (prefetch) (*prefetch)();
    const float* const ai = a + i * kRowStep;
    float* const ci = c + i * kPanel;
    if (num_vectors == 1) {
      multiply_tile<Shape, kReading, 1>(ai, a_panel_step, b, num_terms, start, ci);
    } else if (num_vectors == 2) {
      multiply_tile<Shape, kReading, 2>(ai, a_panel_step, b, num_terms, start, ci);
    } else {
      multiply_tile<Shape, kReading, 3>(ai, a_panel_step, b, num_terms, start, ci);
    }
  }
}

}  // namespace rlk
