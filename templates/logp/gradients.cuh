// SPDX-License-Identifier: Apache-2.0
// Gradients of a row of logits. Each follows from its logit and its row alone.
#pragma once

#include "logp/matrix.cuh"

namespace rlk {

using Chunk = Pack<16>;
constexpr int kChunk = Chunk::kSize;

struct GradientRow {
  LogpCudaRowGrad grad;
  float max, log_sum, scale, none;
  Int64 target;
};

RLK_DEVICE GradientRow gradient_row(const Args& a, Int64 row, Int64 target) {
  GradientRow values;
  float most;
  values.grad = row_gradient(a, row, most);
  values.max = a.row_max[row];
  values.log_sum = a.row_log_sum[row];
  values.scale = scale_of(a, row);
  values.none = no_gradient(values.max);
  values.target = column_of(a, target);
  return values;
}

template <bool kCap>
RLK_DEVICE float gradient_at(const Args& a, const GradientRow& row, float x, bool is_target) {
  float slope = 1.0f;
  const float z = finish_logit<kCap>(a, scaled(a, x), row.scale, slope);
  return logit_gradient<kCap>(z, slope, row.max, row.log_sum, row.grad, is_target, row.none);
}

template <bool kCap>
RLK_DEVICE Chunk gradients_of(const Args& a, const GradientRow& row, const Chunk& x, Int64 col) {
  const Int64 away = row.target - col;
  const int target = away >= 0 && away < kChunk ? static_cast<int>(away) : -1;
  Chunk dx;
#pragma unroll
  for (int w = 0; w < 4; ++w) {
    if constexpr (kX == kFloat32) {
      dx.words[w] = __float_as_uint(gradient_at<kCap>(a, row, x.get(w), target == w));
    } else {
      const float low = gradient_at<kCap>(a, row, x.get(2 * w), target == 2 * w);
      const float high = gradient_at<kCap>(a, row, x.get(2 * w + 1), target == 2 * w + 1);
      dx.words[w] = kX == kBfloat16 ? cvt_rn_bf16x2(low, high) : cvt_rn_f16x2(low, high);
    }
  }
  return dx;
}

// Columns [begin, end) of a row by the whole block: of `chunk(col)` where 16 bytes lie side by
// side, of `element(col)` elsewhere.
template <int kAtOnce, class OfElements, class OfChunks>
RLK_DEVICE void for_columns(Int64 begin, Int64 end, Int64 first_chunk, OfElements&& elements,
                            OfChunks&& chunks) {
  const Int64 whole = first_chunk + (end - first_chunk) / kChunk * kChunk;
#pragma unroll 1
  for (Int64 col = begin + threadIdx.x; col < first_chunk; col += blockDim.x) elements(col);
#pragma unroll 1
  for (Int64 col = first_chunk + Int64{kChunk} * threadIdx.x; col < whole;
       col += Int64{kChunk} * blockDim.x * kAtOnce) {
    chunks(col, whole);
  }
#pragma unroll 1
  for (Int64 col = whole + threadIdx.x; col < end; col += blockDim.x) elements(col);
}

// First column from `begin` on where a chunk is aligned; `end` where none is.
RLK_DEVICE Int64 first_chunk(const LogpCudaMatrix& m, const T* row, Int64 begin, Int64 end) {
  if (m.col_stride != 1) return end;
  const Int64 after = static_cast<Int64>(address(row + begin) % 16 / sizeof(T));
  return min(begin + (after == 0 ? 0 : kChunk - after), end);
}

// load(words, col) reads the 16 bytes from a column on; a thread has kAtOnce under way.
template <bool kCap, int kAtOnce, class Load>
RLK_DEVICE void write_gradients(const Args& a, const GradientRow& row, const T* from, T* to,
                                Int64 begin, Int64 end, Load&& load) {
  const Int64 aligned = first_chunk(a.logits, from, begin, end);
  const bool alike = a.grad_logits.col_stride == 1 && address(from) % 16 == address(to) % 16;
  for_columns<kAtOnce>(
      begin, end, alike ? aligned : end,
      [&](Int64 col) {
        const float x = Element<kX>::to_float(from[col * a.logits.col_stride]);
        to[col * a.grad_logits.col_stride] =
            Element<kX>::from_float(gradient_at<kCap>(a, row, x, col == row.target));
      },
      [&](Int64 col, Int64 whole) {
        Chunk x[kAtOnce];
#pragma unroll
        for (int u = 0; u < kAtOnce; ++u) {
          const Int64 at = col + u * Int64{kChunk} * blockDim.x;
          if (at < whole) load(x[u].words, at);
        }
#pragma unroll
        for (int u = 0; u < kAtOnce; ++u) {
          const Int64 at = col + u * Int64{kChunk} * blockDim.x;
          if (at < whole) st_stream(to + at, gradients_of<kCap>(a, row, x[u], at).words);
        }
      });
}

RLK_DEVICE void write_zeros(const Args& a, T* to, Int64 begin, Int64 end) {
  constexpr int kAtOnce = 2;
  for_columns<kAtOnce>(
      begin, end, first_chunk(a.grad_logits, to, begin, end),
      [&](Int64 col) { to[col * a.grad_logits.col_stride] = T{}; },
      [&](Int64 col, Int64 whole) {
        const unsigned zeros[4] = {};
#pragma unroll
        for (int u = 0; u < kAtOnce; ++u) {
          const Int64 at = col + u * Int64{kChunk} * blockDim.x;
          if (at < whole) st_stream(to + at, zeros);
        }
      });
}

}  // namespace rlk
