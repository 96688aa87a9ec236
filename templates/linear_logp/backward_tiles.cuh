// SPDX-License-Identifier: Apache-2.0
// The backward's products by a block a tile: the loops of fp32 and of mma.sync. See kernel.cuh.
#pragma once

#include "common/cuda/store.cuh"
#include "linear_logp/logits.cuh"

namespace rlk {

constexpr CudaTile kGradientTile = linear_logp_cuda_gradient_tile(kX, RLK_SHARED_LIMIT);
using GradientShape =
    Shape<kGradientTile.rows, kGradientTile.cols, kGradientTile.k, kGradientTile.stages,
          kGradientTile.warp_rows, kGradientTile.warp_cols, (kD >= 0)>;
constexpr int kChunk = 16 / sizeof(T);  // elements that one copy moves

RLK_DEVICE Int64 padded_dim(const Args& a) { return ceil_div(dim(a), kChunk) * kChunk; }

// Values of the tile's rows beside those of LogitsShared.
struct GradShared {
  float max[kLogitsTile.rows];
  float log_sum[kLogitsTile.rows];
  LogpCudaRowGrad grad[kLogitsTile.rows];
};

template <bool kCap>
RLK_DEVICE void make_grad_logits(LogitsLoop& tile, const Args& a, const LogitsShared& s,
                                 const GradShared& g) {
#pragma unroll
  for (int i = 0; i < LogitsLoop::kRowsOfThread; ++i) {
    const int row = tile.row(i);
    const float scale = s.scale[row], max = g.max[row], log_sum = g.log_sum[row];
    const LogpCudaRowGrad grad = g.grad[row];
    turn_row<kCap>(tile, i, a, scale, max, log_sum, grad, tile.element(s.target[row]));
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

RLK_DEVICE void make_dz_tile(const Args& a) {
  const TilePosition at = tile_position(ceil_div(a.num_rows, kLogitsTile.rows),
                                        a.wave.num_segments * a.wave.num_leaves, a.group_tiles);
  const Int64 row0 = at.row * kLogitsTile.rows;
  const Int64 left = num_active(a) - row0;
  if (left <= 0) return;

  __shared__ LogitsShared s;
  __shared__ GradShared g;
  __shared__ int wave_leaf;  // the loop leaves no registers for it
  if (threadIdx.x == 0) wave_leaf = static_cast<int>(at.col);
  const int num_rows = static_cast<int>(min<Int64>(left, kLogitsTile.rows));
  const int i = thread_index();
  if (i < num_rows) {
    const LinearLogpRowGrad grad = a.row_grad[row0 + i];
    g.max[i] = grad.max;
    g.log_sum[i] = grad.log_sum;
    g.grad[i] = grad.of;
  }
  const LogpLeaf leaf = leaf_of_wave(a, static_cast<int>(at.col));
  load_tile_values(s, a, row0, num_rows, leaf.begin, leaf.cols);
  LogitsLoop tile;
  tile.zero();
  tile.run({s.hidden}, {s.weight}, static_cast<int>(dim(a)), stages);
  make_grad_logits(tile, a, s, g);
  set_tail(tile, s, 0.0f);
  T* const to =
      static_cast<T*>(a.wave.grad_logits) + s.row0 * a.wave.pitch + column_of_leaf(a, wave_leaf);
  store_tile<kX>(tile, {s.num_rows, width_of_leaf(a, wave_leaf), true, 1}, stages,
                 [&](int row) { return to + row * a.wave.pitch; });
  if (!is_made_of_exponentials(a)) return;
  __syncthreads();
  const int row = thread_index();
  if (row >= s.num_rows || s.target[row] < 0) return;
  to[row * a.wave.pitch + s.target[row]] = Element<kX>::from_float(a.row_grad[s.row0 + row].exact);
}

RLK_DEVICE void make_dh_tile(const Args& a) {
  using Loop = Loops<kX, GradientShape>::KL;
  const int col_tiles = static_cast<int>(ceil_div(dim(a), kGradientTile.cols));
  const TilePosition at = tile_position(ceil_div(a.strip_rows, kGradientTile.rows),
                                        a.wave.num_segments * col_tiles, a.group_tiles);
  const auto [segment, index] = tile_of_segment(at.col, col_tiles);
  const Int64 strip_row = at.row * kGradientTile.rows, row0 = a.first_row + strip_row;
  const Int64 col0 = Int64{index} * kGradientTile.cols;
  const Int64 left = min(num_active(a) - row0, a.strip_rows - strip_row);
  if (left <= 0) return;
  const int num_rows = static_cast<int>(min<Int64>(left, kGradientTile.rows));
  const int num_cols = static_cast<int>(min<Int64>(a.sum_pitch - col0, kGradientTile.cols));

  __shared__ const void* grad_rows[kGradientTile.rows];
  static_assert(kGradientTile.rows <= kGradientTile.threads());
  const int i = threadIdx.x;
  if (i < kGradientTile.rows) {
    grad_rows[i] = static_cast<const T*>(a.wave.grad_logits) +
                   (row0 + min(i, num_rows - 1)) * a.wave.pitch + segment * a.wave.step;
  }
  __syncthreads();
  float* const sums = a.segment_sums + (segment * a.strip_rows + strip_row) * a.sum_pitch + col0;
  const auto row_start = [&](int row) { return sums + row * a.sum_pitch; };
  Loop tile;
  tile.zero();
  if (a.wave.first_leaf > 0) {
    for_each_in_memory(tile, num_rows, num_cols, row_start, [](float& sum, float x) { sum = x; });
  }
  const WaveSegment columns = wave_segment(a, segment);
  tile.run({grad_rows},
           {static_cast<const T*>(a.weight) + columns.begin * a.weight_pitch + col0,
            a.weight_pitch * Int64{sizeof(T)}, static_cast<int>(padded_dim(a) - col0)},
           columns.cols, stages);
  store_tile<kFloat32>(tile, {num_rows, num_cols, true, 1}, stages, row_start);
}

RLK_DEVICE void make_dw_tile(const Args& a) {
  if (num_active(a) < 0) return;
  using Loop = Loops<kX, GradientShape>::LL;
  const int row_tiles = static_cast<int>(ceil_div(a.wave.width, kGradientTile.rows));
  const TilePosition at = tile_position(a.wave.num_segments * row_tiles,
                                        ceil_div(dim(a), kGradientTile.cols), a.group_tiles);
  const auto [segment, index] = tile_of_segment(at.row, row_tiles);
  const int row0 = index * kGradientTile.rows;
  const Int64 col0 = at.col * kGradientTile.cols;
  const PackedRows hidden = packed_hidden(a);
  Loop tile;
  tile.zero();
  tile.run({static_cast<const T*>(a.wave.grad_logits) + segment * a.wave.step + row0,
            a.wave.pitch * Int64{sizeof(T)}, min(a.wave.width - row0, kGradientTile.rows)},
           {static_cast<const T*>(hidden.data) + col0, hidden.pitch * Int64{sizeof(T)},
            static_cast<int>(padded_dim(a) - col0)},
           static_cast<int>(num_active(a)), stages);
  if (kX == kFloat16) scale_tile(tile, power_of_two(-*a.call_shift));
  const WaveSegment columns = wave_segment(a, segment);
  const int num_rows = min(columns.cols - row0, kGradientTile.rows);
  const int num_cols = static_cast<int>(min<Int64>(dim(a) - col0, kGradientTile.cols));
  const Int64 first = (columns.begin + row0) * a.grad_weight_row_stride + col0;
  const auto store = [&]<int kType>(Constant<kType>) {
    auto* const to = static_cast<typename Element<kType>::Type*>(a.grad_weight) + first;
    store_tile<kType>(
        tile,
        {num_rows, num_cols,
         stores_whole_chunks<kType>(a.grad_weight, a.grad_weight_row_stride, dim(a)), 1},
        stages, [&](int row) { return to + row * a.grad_weight_row_stride; });
  };
  if (a.adds_weight) {
    const float* const from = static_cast<const float*>(a.grad_weight) + first;
    for_each_in_memory(
        tile, num_rows, num_cols, [&](int row) { return from + row * a.grad_weight_row_stride; },
        [](float& sum, float x) { sum = x + sum; });
  }
  if (a.grad_weight_type == kX) return store(Constant<kX>());
  store(Constant<kFloat32>());
}

}  // namespace rlk
