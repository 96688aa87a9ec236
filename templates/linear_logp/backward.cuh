// SPDX-License-Identifier: Apache-2.0
// Entry points of linear_logp's backward; see kernel.cuh.
#pragma once

#include "common/cuda/store.cuh"

namespace rlk {

constexpr CudaTile kGradientTile = linear_logp_cuda_gradient_tile(kX, RLK_SHARED_LIMIT);
using GradientShape = Shape<kGradientTile.rows, kGradientTile.cols, kGradientTile.k,
                            kGradientTile.stages, kGradientTile.warp_rows, kGradientTile.warp_cols>;
constexpr int kChunk = 16 / sizeof(T);  // elements that one copy moves

// 2^e, for e in [-126, 127].
RLK_DEVICE float power_of_two(int e) { return __int_as_float((e + 127) << 23); }

// Power of two that brings |g| into [2^13, 2^14); 0 where there is none.
RLK_DEVICE int shift_of(float g) {
  const int exponent = (__float_as_int(g) >> 23 & 255) - 127;
  if (exponent == 128 || g == 0.0f) return 0;
  const int shift = 13 - exponent;
  return shift > 126 ? 126 : shift;
}

RLK_DEVICE Int64 padded_wave(const Args& a) { return ceil_div(a.wave_cols, kLogpLeaf) * kLogpLeaf; }
RLK_DEVICE Int64 padded_dim(const Args& a) { return ceil_div(dim(a), kChunk) * kChunk; }

// Values of the tile's rows beside those of LogitsShared.
struct GradShared {
  float max[kLogitsTile.rows];
  float log_sum[kLogitsTile.rows];
  LogpCudaRowGrad grad[kLogitsTile.rows];
};

// dZ in place of what add_bias() left.
template <bool kCap>
RLK_DEVICE void make_grad_logits(LogitsLoop& tile, const Args& a, const LogitsShared& s,
                                 const GradShared& g) {
#pragma unroll
  for (int i = 0; i < LogitsLoop::kRowsOfThread; ++i) {
    const int row = tile.row(i);
    const float scale = s.scale[row], max = g.max[row], log_sum = g.log_sum[row];
    const LogpCudaRowGrad grad = g.grad[row];
    const int target = tile.element(s.target[row]);  // a constant to compare with, no register
    const float none = no_gradient(max);
#pragma unroll
    for (int j = 0; j < LogitsLoop::kPairsOfThread; ++j) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        float slope = 1.0f;
        const float z = finish_logit<kCap>(a, tile.at(i, j, e), scale, slope);
        tile.at(i, j, e) =
            logit_gradient<kCap>(z, slope, max, log_sum, grad, target == 2 * j + e, none);
      }
    }
  }
}
RLK_DEVICE void make_grad_logits(LogitsLoop& tile, const Args& a, const LogitsShared& s,
                                 const GradShared& g) {
  add_bias(tile, a, s);
  // At run time in every kernel that may have a cap: where no branch parts them, the compiler's
  // shortage of registers here spills what the loop of products needs.
  if (!has_cap_argument(a)) return make_grad_logits<false>(tile, a, s, g);
  make_grad_logits<true>(tile, a, s, g);
}

template <class Loop>
RLK_DEVICE void scale_tile(Loop& tile, const float (&factor)[Loop::kRowsOfThread]) {
#pragma unroll
  for (int i = 0; i < Loop::kRowsOfThread; ++i) {
#pragma unroll
    for (int j = 0; j < Loop::kPairsOfThread; ++j) {
      tile.at(i, j, 0) = tile.at(i, j, 0) * factor[i];
      tile.at(i, j, 1) = tile.at(i, j, 1) * factor[i];
    }
  }
}

// Whether rows of a matrix of `cols` columns may be stored 16 bytes at a time.
RLK_DEVICE bool stores_whole_chunks(const void* matrix, Int64 row_stride, Int64 col_stride,
                                    Int64 cols) {
  return col_stride == 1 && row_stride % kChunk == 0 && cols % kChunk == 0 &&
         reinterpret_cast<unsigned long long>(matrix) % 16 == 0;
}

// Moves the sums of a tile from or to memory, where they wait for the next wave: four of a thread
// at once, by threads, then by tiles.
template <bool kLoad, class Loop>
RLK_DEVICE void move_sums(Loop& tile, float* all_sums, Int64 tile_index) {
  float4* const sums = reinterpret_cast<float4*>(all_sums) +
                       tile_index * (Loop::kRows * Loop::kCols / 4) + threadIdx.x;
#pragma unroll
  for (int i = 0; i < Loop::kRowsOfThread; ++i) {
#pragma unroll
    for (int j = 0; j < Loop::kPairsOfThread; j += 2) {
      float4& at = sums[(i * Loop::kPairsOfThread + j) / 2 * Loop::kThreads];
      if (kLoad) {
        const float4 x = at;
        tile.at(i, j, 0) = x.x, tile.at(i, j, 1) = x.y;
        tile.at(i, j + 1, 0) = x.z, tile.at(i, j + 1, 1) = x.w;
      } else {
        at = float4{tile.at(i, j, 0), tile.at(i, j, 1), tile.at(i, j + 1, 0), tile.at(i, j + 1, 1)};
      }
    }
  }
}

}  // namespace rlk

extern "C" __global__ void __launch_bounds__(1024)
    rlk_linear_logp_bwd_rows(const __grid_constant__ rlk::LinearLogpCudaArgs a) {
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
    a.row_grad[i] = {grad.target * factor, grad.all * factor, grad.log_p * factor};
    a.row_shift[i] = shift;
    const bool finite = most - most == 0.0f;
    if (kX == kFloat16 && finite && most != 0.0f) atomicMin(&least, shift);
  }
  __syncthreads();
  if (threadIdx.x == 0) *a.call_shift = least == 127 ? 0 : least;
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
#pragma unroll 1
  for (Int64 i = blockIdx.x; i < num_active(a); i += gridDim.x) {
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

extern "C" __global__ void __launch_bounds__(rlk::kLogitsTile.threads(), rlk::kLogitsTile.blocks)
    rlk_linear_logp_bwd_dz(const __grid_constant__ rlk::LinearLogpCudaArgs a) {
  using namespace rlk;
  const TilePosition at = tile_position(ceil_div(a.num_rows, kLogitsTile.rows),
                                        ceil_div(a.wave_cols, kLogpLeaf), a.group_tiles);
  const Int64 row0 = at.row * kLogitsTile.rows;
  const Int64 left = num_active(a) - row0;
  if (left <= 0) return;
  const Int64 col0 = a.wave_begin + at.col * kLogpLeaf;

  __shared__ LogitsShared s;
  __shared__ GradShared g;
  const int num_rows = static_cast<int>(min<Int64>(left, kLogitsTile.rows));
  const int i = thread_index();
  if (i < num_rows) {
    const Int64 row = call_row(a, row0 + i);
    g.max[i] = a.row_max[row];
    g.log_sum[i] = a.row_log_sum[row];
    g.grad[i] = a.row_grad[row0 + i];
  }
  load_tile_values(s, a, row0, num_rows, col0,
                   static_cast<int>(min<Int64>(vocab(a) - col0, kLogpLeaf)));
  LogitsLoop tile;
  tile.zero();
  tile.run({s.hidden}, {s.weight}, static_cast<int>(dim(a)), stages);
  make_grad_logits(tile, a, s, g);
  T* const to = static_cast<T*>(a.grad_logits) + s.row0 * a.wave_pitch + (s.col0 - a.wave_begin);
  store_tile<kX>(tile, {s.num_rows, kLogitsTile.cols, true, 1}, stages,
                 [&](int row) { return to + row * a.wave_pitch; });
}

extern "C" __global__ void __launch_bounds__(rlk::kGradientTile.threads(),
                                             rlk::kGradientTile.blocks)
    rlk_linear_logp_bwd_dh(const __grid_constant__ rlk::LinearLogpCudaArgs a) {
  using namespace rlk;
  using Loop = Loops<kX, GradientShape>::KL;
  const Int64 col_tiles = ceil_div(dim(a), kGradientTile.cols);
  const TilePosition at =
      tile_position(ceil_div(a.num_rows, kGradientTile.rows), col_tiles, a.group_tiles);
  const Int64 row0 = at.row * kGradientTile.rows;
  const Int64 col0 = at.col * kGradientTile.cols;
  const Int64 left = num_active(a) - row0;
  if (left <= 0) return;
  const int num_rows = static_cast<int>(min<Int64>(left, kGradientTile.rows));
  const int num_cols = static_cast<int>(min<Int64>(dim(a) - col0, kGradientTile.cols));
  const bool first_wave = a.wave_begin == 0;
  const bool last_wave = a.wave_begin + a.wave_cols >= vocab(a);

  __shared__ const void* grad_rows[kGradientTile.rows];
  static_assert(kGradientTile.rows <= kGradientTile.threads());
  const int i = threadIdx.x;
  if (i < kGradientTile.rows) {
    grad_rows[i] =
        static_cast<const T*>(a.grad_logits) + (row0 + min(i, num_rows - 1)) * a.wave_pitch;
  }
  __syncthreads();
  const Int64 tile_index = at.row * col_tiles + at.col;
  Loop tile;
  tile.zero();
  if (!first_wave) move_sums<true>(tile, a.grad_hidden_sum, tile_index);
  tile.run({grad_rows},
           {static_cast<const T*>(a.weight) + a.wave_begin * a.weight_pitch + col0,
            a.weight_pitch * Int64{sizeof(T)}, static_cast<int>(padded_dim(a) - col0)},
           static_cast<int>(a.wave_cols), stages);
  if (!last_wave) return move_sums<false>(tile, a.grad_hidden_sum, tile_index);

  if constexpr (kX == kFloat16) {
    float factor[Loop::kRowsOfThread];
#pragma unroll
    for (int i = 0; i < Loop::kRowsOfThread; ++i) {
      factor[i] = power_of_two(-a.row_shift[row0 + min(tile.row(i), num_rows - 1)]);
    }
    scale_tile(tile, factor);
  }
  T* const to = static_cast<T*>(a.grad_hidden) + col0 * a.grad_hidden_col_stride;
  store_tile<kX>(tile,
                 {num_rows, num_cols,
                  stores_whole_chunks(a.grad_hidden, a.grad_hidden_row_stride,
                                      a.grad_hidden_col_stride, dim(a)),
                  a.grad_hidden_col_stride},
                 stages,
                 [&](int row) { return to + call_row(a, row0 + row) * a.grad_hidden_row_stride; });
}

extern "C" __global__ void __launch_bounds__(rlk::kGradientTile.threads(),
                                             rlk::kGradientTile.blocks)
    rlk_linear_logp_bwd_dw(const __grid_constant__ rlk::LinearLogpCudaArgs a) {
  using namespace rlk;
  using Loop = Loops<kX, GradientShape>::LL;
  const TilePosition at = tile_position(ceil_div(a.wave_cols, kGradientTile.rows),
                                        ceil_div(dim(a), kGradientTile.cols), a.group_tiles);
  const Int64 row0 = at.row * kGradientTile.rows;
  const Int64 col0 = at.col * kGradientTile.cols;
  Loop tile;
  tile.zero();
  tile.run({static_cast<const T*>(a.grad_logits) + row0, a.wave_pitch * Int64{sizeof(T)},
            static_cast<int>(min<Int64>(padded_wave(a) - row0, kGradientTile.rows))},
           {static_cast<const T*>(a.hidden_shifted) + col0,
            a.hidden_shifted_pitch * Int64{sizeof(T)}, static_cast<int>(padded_dim(a) - col0)},
           static_cast<int>(num_active(a)), stages);
  if constexpr (kX == kFloat16) {
    float factor[Loop::kRowsOfThread];
#pragma unroll
    for (int i = 0; i < Loop::kRowsOfThread; ++i) factor[i] = power_of_two(-*a.call_shift);
    scale_tile(tile, factor);
  }
  const int num_rows = static_cast<int>(min<Int64>(a.wave_cols - row0, kGradientTile.rows));
  const int num_cols = static_cast<int>(min<Int64>(dim(a) - col0, kGradientTile.cols));
  T* const to = static_cast<T*>(a.grad_weight) + (a.wave_begin + row0) * a.grad_weight_row_stride +
                col0 * a.grad_weight_col_stride;
  store_tile<kX>(tile,
                 {num_rows, num_cols,
                  stores_whole_chunks(a.grad_weight, a.grad_weight_row_stride,
                                      a.grad_weight_col_stride, dim(a)),
                  a.grad_weight_col_stride},
                 stages, [&](int row) { return to + row * a.grad_weight_row_stride; });
}

// grad_bias of 32 columns of the wave. Chain c sums active rows c, c + 8, ...; chains join in
// order.
extern "C" __global__ void __launch_bounds__(256)
    rlk_linear_logp_bwd_db(const __grid_constant__ rlk::LinearLogpCudaArgs a) {
  using namespace rlk;
  __shared__ float sums[8][32];
  const int lane = threadIdx.x % 32, chain = threadIdx.x / 32;
  const Int64 col = Int64{blockIdx.x} * 32 + lane;  // wave_pitch is a multiple of 32
  const T* const dz = static_cast<const T*>(a.grad_logits) + col;
  const Int64 count = num_active(a);
  float sum = 0.0f;
#pragma unroll 4
  for (Int64 i = chain; i < count; i += 8) {
    float x = Element<kX>::to_float(dz[i * a.wave_pitch]);
    if (kX == kFloat16) x = x * power_of_two(-a.row_shift[i]);
    sum = sum + x;
  }
  sums[chain][lane] = sum;
  __syncthreads();
  if (chain != 0 || col >= a.wave_cols) return;
#pragma unroll
  for (int c = 1; c < 8; ++c) sum = sum + sums[c][lane];
  write_float(a.grad_bias, (a.wave_begin + col) * a.grad_bias_stride, sum, a.bias.type);
}
