// SPDX-License-Identifier: Apache-2.0
// Entry points of linear_logp's backward; see kernel.cuh.
#pragma once

#include "common/cuda/store.cuh"
#include "linear_logp/logits_sm90.cuh"

namespace rlk {

// 2^e, for e in [-126, 127].
RLK_DEVICE float power_of_two(int e) { return __int_as_float((e + 127) << 23); }

// Power of two that brings |g| into [2^13, 2^14); 0 where there is none.
RLK_DEVICE int shift_of(float g) {
  const int exponent = (__float_as_int(g) >> 23 & 255) - 127;
  if (exponent == 128 || g == 0.0f) return 0;
  const int shift = 13 - exponent;
  return shift > 126 ? 126 : shift;
}

// Whether rows of a dense matrix of `cols` columns of kType may be stored 16 bytes at a time.
template <int kType>
RLK_DEVICE bool stores_whole_chunks(const void* matrix, Int64 row_stride, Int64 cols) {
  constexpr int kChunk = 16 / sizeof(typename Element<kType>::Type);
  return row_stride % kChunk == 0 && cols % kChunk == 0 &&
         reinterpret_cast<unsigned long long>(matrix) % 16 == 0;
}

// dZ of a thread's row i in place of what add_bias() left. target: its element of the row, or below
// 0: a constant to compare with, no register.
template <bool kCap, class Loop, class Index>
RLK_DEVICE void turn_row(Loop& tile, Index i, const Args& a, float scale, float max, float log_sum,
                         const LogpCudaRowGrad& grad, int target) {
  const float none = no_gradient(max);
#pragma unroll
  for (int j = 0; j < Loop::kPairsOfThread; ++j) {
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      float slope = 1.0f;
      const float z = finish_logit<kCap>(a, tile.at(i, j, e), scale, slope);
      tile.at(i, j, e) =
          logit_gradient<kCap>(z, slope, max, log_sum, grad, target == 2 * j + e, none);
    }
  }
}

template <class Loop>
RLK_DEVICE void scale_tile(Loop& tile, float factor) {
  unrolled<Loop::kRowsOfThread>([&](auto i) {
#pragma unroll
    for (int j = 0; j < Loop::kPairsOfThread; ++j) {
      tile.at(i, j, 0) = tile.at(i, j, 0) * factor;
      tile.at(i, j, 1) = tile.at(i, j, 1) * factor;
    }
  });
}

}  // namespace rlk

#include "linear_logp/backward_sm90.cuh"
#include "linear_logp/backward_tiles.cuh"

namespace rlk {

constexpr int kGradLogitsThreads = kUsesSm90Loop ? Sm90Loop::kThreads : kLogitsTile.threads();
constexpr int kGradientThreads =
    kUsesSm90Loop ? SegmentSums::Loop::kThreads : kGradientTile.threads();

// Four sums of grad_hidden side by side.
struct Sums4 {
  float x[4];
  RLK_DEVICE Sums4 operator+(const Sums4& other) const {
    return {{x[0] + other.x[0], x[1] + other.x[1], x[2] + other.x[2], x[3] + other.x[3]}};
  }
};
RLK_DEVICE Sums4 load_sums(const float* from) {
  const float4 x = *reinterpret_cast<const float4*>(from);
  return {{x.x, x.y, x.z, x.w}};
}

// The sum of `count` segments, 1 to kMost of them, as a balanced tree.
template <int kMost>
RLK_DEVICE Sums4 join_segments(const float* first, Int64 step, int count) {
  if constexpr (kMost == 1) {
    return load_sums(first);
  } else {
    constexpr int kHalf = kMost / 2;
    const Sums4 left = join_segments<kHalf>(first, step, min(count, kHalf));
    if (count <= kHalf) return left;
    return left + join_segments<kHalf>(first + kHalf * step, step, count - kHalf);
  }
}

}  // namespace rlk

extern "C" __global__ void __launch_bounds__(1024)
    rlk_linear_logp_bwd_rows(const __grid_constant__ rlk::LinearLogpCudaArgs a) {
  if (a.unless_one && *a.unless_one == 1.0f) {
    if (threadIdx.x == 0) *a.num_active = -1;
    return;
  }
  rlk::list_active_rows(a, false);
}

extern "C" __global__ void __launch_bounds__(256)
    rlk_linear_logp_bwd_pack(const __grid_constant__ rlk::CudaCopy copy) {
  rlk::pack(copy);
}

// What dZ of the active rows is made of, in one block of 512 threads.
extern "C" __global__ void __launch_bounds__(512)
    rlk_linear_logp_bwd_grads(const __grid_constant__ rlk::LinearLogpCudaArgs a) {
  using namespace rlk;
  __shared__ int least;
  if (threadIdx.x == 0) least = 127;
  __syncthreads();
#pragma unroll 1
  for (Int64 i = threadIdx.x; i < num_active(a); i += 512) {
    const Int64 row = call_row(a, i);
    float most;
    const LogpCudaRowGrad grad = row_gradient(a, row, most);
    const int shift = kX == kFloat16 ? shift_of(most) : 0;
    const float factor = power_of_two(shift);
    const float target = grad.target * factor, all = grad.all * factor;
    // g_logp (1 - p) + g_lse p, without rounding p first; a target of -inf has no gradient.
    const float log_p = a.logp[row];
    const float of_lse = upstream(a.grad_lse, row) * scaled(a, scale_of(a, row)) * factor;
    const float exact =
        log_p == -infinity() ? 0.0f : fma_rn(-expm1_f32(log_p), target, exp_f32(log_p) * of_lse);
    a.row_grad[i] = {{target, all, grad.log_p * factor}, exact, a.row_max[row], a.row_log_sum[row]};
    a.row_shift[i] = shift;
    const bool finite = most - most == 0.0f;
    if (kX == kFloat16 && finite && most != 0.0f) atomicMin(&least, shift);
  }
  __syncthreads();
  if (threadIdx.x == 0) *a.call_shift = least == 127 ? 0 : least;
  if constexpr (kUsesSm90Loop) {
    if (a.chunk.terms) begin_chunk(a);
  }
}

// fp16: hidden rows for grad_weight, each smaller by the power of two that its dZ was raised by
// beyond the row with the largest gradient, so that one factor undoes both in every element. A
// block a row. Other types have no use for it.
extern "C" __global__ void __launch_bounds__(256)
    rlk_linear_logp_bwd_shift(const __grid_constant__ rlk::LinearLogpCudaArgs a) {
  using namespace rlk;
  if constexpr (kX != kFloat16) return;
  const Int64 pitch = a.hidden_shifted_pitch;
  T* const to = static_cast<T*>(const_cast<void*>(a.hidden_shifted));
  const Int64 filled = min(filled_rows(num_active(a)), a.num_rows);
#pragma unroll 1
  for (Int64 i = blockIdx.x; i < filled; i += gridDim.x) {
    if (i >= num_active(a)) {
#pragma unroll 1
      for (Int64 col = threadIdx.x; col < pitch; col += 256) to[i * pitch + col] = T{};
      continue;
    }
    const int e = *a.call_shift - a.row_shift[i];
    const float factor = power_of_two(e > 0 ? 0 : e < -126 ? -126 : e);
    const T* const from = hidden_row<T>(a, i, call_row(a, i));
#pragma unroll 1
    for (Int64 col = threadIdx.x; col < pitch; col += 256) {
      const float h = col < dim(a) ? Element<kX>::to_float(from[col]) : 0.0f;
      to[i * pitch + col] = Element<kX>::from_float(h * factor);
    }
  }
}

#define RLK_PRODUCT(name, threads)                                                           \
  extern "C" __global__ void __launch_bounds__(rlk::threads, 1)                              \
      rlk_linear_logp_bwd_##name(const __grid_constant__ rlk::LinearLogpCudaArgs a,          \
                                 const __grid_constant__ rlk::LinearLogpCudaGradMaps maps) { \
    if constexpr (rlk::kUsesSm90Loop) {                                                      \
      rlk::make_##name##_sm90(a, maps);                                                      \
    } else {                                                                                 \
      rlk::make_##name##_tile(a);                                                            \
    }                                                                                        \
  }
RLK_PRODUCT(dz, kGradLogitsThreads)

// In the place of dz where the wave's exponentials were kept.
extern "C" __global__ void __launch_bounds__(256)
    rlk_linear_logp_bwd_turn(const __grid_constant__ rlk::LinearLogpCudaArgs a) {
  if constexpr (rlk::kUsesSm90Loop) rlk::turn_kept(a);
}

RLK_PRODUCT(dh, kGradientThreads)
RLK_PRODUCT(dw, kGradientThreads)

// After the products of a chunk that is not the last.
extern "C" __global__ void __launch_bounds__(256)
    rlk_linear_logp_bwd_carry(const __grid_constant__ rlk::LinearLogpCudaArgs a) {
  if constexpr (rlk::kUsesSm90Loop) rlk::carry_rows(a);
}

// Joins the sums of a strip's segments, then with those of the waves before, and keeps the result
// or writes grad_hidden, zeros in rows that are not active. A block a row.
extern "C" __global__ void __launch_bounds__(256)
    rlk_linear_logp_bwd_join(const __grid_constant__ rlk::LinearLogpCudaArgs a) {
  using namespace rlk;
  const Int64 row = a.first_row + blockIdx.x, pitch = a.sum_pitch;
  const Int64 count = num_active(a);
  if (count < 0 || row >= (a.to_level < 0 ? a.num_rows : count)) return;
  float factor = 1.0f;
  if (kX == kFloat16 && a.to_level < 0 && row < count) factor = power_of_two(-a.row_shift[row]);
  const Int64 to = call_row(a, row) * dim(a);
  const bool rounds = a.grad_hidden_type == kX;
#pragma unroll 1
  for (Int64 col = threadIdx.x * 4; col < pitch; col += 4 * 256) {
    Sums4 sum = {};
    if (row < count) {
      sum = join_segments<kLogpSegments>(a.segment_sums + blockIdx.x * pitch + col,
                                         a.strip_rows * pitch, a.wave.num_segments);
      float* level = a.wave_sums + row * pitch + col;
#pragma unroll 1
      for (int levels = a.add_levels; levels != 0; levels >>= 1) {
        if (levels & 1) sum = load_sums(level) + sum;
        level += a.num_rows * pitch;
      }
    }
    if (a.to_level >= 0) {
      *reinterpret_cast<float4*>(a.wave_sums + (a.to_level * a.num_rows + row) * pitch + col) =
          float4{sum.x[0], sum.x[1], sum.x[2], sum.x[3]};
      continue;
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (col + i >= dim(a)) break;
      const float x = sum.x[i] * factor;
      if (rounds) {
        write_float<kX>(a.grad_hidden, to + col + i, x);
      } else {
        write_float<kFloat32>(a.grad_hidden, to + col + i, x);
      }
    }
  }
}

// grad_bias of 32 columns of the wave. Chain c sums active rows c, c + 8, ...; chains join in
// order. Those of a chunk go on from, and wait for, other chunks: its terms are whole eights.
extern "C" __global__ void __launch_bounds__(256)
    rlk_linear_logp_bwd_db(const __grid_constant__ rlk::LinearLogpCudaArgs a) {
  using namespace rlk;
  __shared__ float sums[8][32];
  const int lane = threadIdx.x % 32, chain = threadIdx.x / 32;
  // Widths are multiples of 32.
  const int segment = static_cast<int>(blockIdx.x) / (a.wave.width / 32);
  const int at = static_cast<int>(blockIdx.x) % (a.wave.width / 32) * 32 + lane;
  const LinearLogpTerms terms = terms_of(a);
  if (terms.count < 0) return;
  const T* const dz = static_cast<const T*>(a.wave.grad_logits) + terms.first * a.wave.pitch +
                      segment * a.wave.step + at;
  const WaveSegment columns = wave_segment(a, segment);
  float* const waiting = kUsesSm90Loop && a.chunk.bias_sums && at < columns.cols
                             ? a.chunk.bias_sums + chain * vocab(a) + columns.begin + at
                             : nullptr;
  float sum = 0.0f;
  if (terms.has_sums && waiting) sum = *waiting;
#pragma unroll 4
  for (Int64 i = chain; i < terms.count; i += 8) {
    float x = Element<kX>::to_float(dz[i * a.wave.pitch]);
    if (kX == kFloat16) x = x * power_of_two(-a.row_shift[i]);
    sum = sum + x;
  }
  if (waiting && !a.chunk.is_last) *waiting = sum;
  sums[chain][lane] = sum;
  __syncthreads();
  if (!a.grad_bias) return;
  if (chain != 0 || at >= columns.cols) return;
#pragma unroll
  for (int c = 1; c < 8; ++c) sum = sum + sums[c][lane];
  write_float(a.grad_bias, (columns.begin + at) * a.grad_bias_stride, sum, a.bias.type);
}
