// SPDX-License-Identifier: Apache-2.0
// Entry points of linear_logp's forward; see kernel.cuh.
#pragma once

namespace rlk {

constexpr int kMergeRows = 32;
constexpr int kMergeSegments = 16;

// Maximum of a row over the lanes of a warp that share it.
RLK_DEVICE float max_over_lanes(float x) {
#pragma unroll
  for (int lanes = 1; lanes < LogitsLoop::kRowLanes; lanes *= 2) {
    x = max_f32(x, shfl_xor(x, lanes));
  }
  return x;
}
RLK_DEVICE float sum_over_lanes(float x) {
#pragma unroll
  for (int lanes = 1; lanes < LogitsLoop::kRowLanes; lanes *= 2) x = x + shfl_xor(x, lanes);
  return x;
}

// A leaf of only -inf: take 0 as its maximum, so that terms are exp(-inf) = 0 and not NaN.
RLK_DEVICE float base_of(float max) { return max == -infinity() ? 0.0f : max; }

// Writes the target's logit of the rows whose target lies in this tile.
RLK_DEVICE void store_target_logits(LogitsLoop& tile, const LogitsShared& s, float* to) {
#pragma unroll
  for (int i = 0; i < LogitsLoop::kRowsOfThread; ++i) {
    const int row = tile.row(i);
    const int target = s.target[row];
    if (target < 0 || row >= s.num_rows) continue;
#pragma unroll
    for (int j = 0; j < LogitsLoop::kPairsOfThread; ++j) {
      const float low = tile.at(i, j, 0), high = tile.at(i, j, 1);
      if ((target & ~1) == tile.col(j)) to[row] = target & 1 ? high : low;
    }
  }
}

// The leaf's partial of every row of the tile. Order: each thread over its columns ascending, then
// the lanes of a row pairwise, then the warps of a row.
RLK_DEVICE void reduce_leaf(LogitsLoop& tile, float* partial_max, float* partial_sum,
                            int num_rows) {
  __shared__ float shared_max[LogitsLoop::kWarpCols][kLogitsTile.rows];
  __shared__ float shared_sum[LogitsLoop::kWarpCols][kLogitsTile.rows];
  const bool first_lane = threadIdx.x % LogitsLoop::kRowLanes == 0;
#pragma unroll
  for (int i = 0; i < LogitsLoop::kRowsOfThread; ++i) {
    float max = -infinity();
#pragma unroll
    for (int j = 0; j < LogitsLoop::kPairsOfThread; ++j) {
      // A NaN is passed over here and found by the sum.
      max = max_f32(max, max_f32(tile.at(i, j, 0), tile.at(i, j, 1)));
    }
    max = max_over_lanes(max);
    if (first_lane) shared_max[tile.warp_col()][tile.row(i)] = max;
  }
  __syncthreads();
#pragma unroll
  for (int i = 0; i < LogitsLoop::kRowsOfThread; ++i) {
    float max = shared_max[0][tile.row(i)];
#pragma unroll
    for (int w = 1; w < LogitsLoop::kWarpCols; ++w) {
      max = max_f32(max, shared_max[w][tile.row(i)]);
    }
    const float base = base_of(max);
    float sum = 0.0f;
#pragma unroll
    for (int j = 0; j < LogitsLoop::kPairsOfThread; ++j) {
      sum = sum + exp_f32(tile.at(i, j, 0) - base);
      sum = sum + exp_f32(tile.at(i, j, 1) - base);
    }
    sum = sum_over_lanes(sum);
    if (first_lane) shared_sum[tile.warp_col()][tile.row(i)] = sum;
  }
  __syncthreads();
#pragma unroll 1
  for (int row = threadIdx.x; row < num_rows; row += kLogitsTile.threads()) {
    float max = shared_max[0][row];
    float sum = shared_sum[0][row];
#pragma unroll
    for (int w = 1; w < LogitsLoop::kWarpCols; ++w) {
      max = max_f32(max, shared_max[w][row]);
      sum = sum + shared_sum[w][row];
    }
    partial_max[row] = max;
    partial_sum[row] = sum;
  }
}

RLK_DEVICE void report_target(const Args& a, Int64 row, Int64 id) {
  DeviceError& error = *a.error;
  // The first one of the device is kept.
  if (atomicCAS(&error.state, DeviceError::kNone, DeviceError::kBeingWritten) != 0) return;
  error.row = row;
  error.id = id;
  error.num_ids = vocab(a);
  error.op = a.op;
  __threadfence_system();
  *const_cast<volatile unsigned*>(&error.state) = DeviceError::kIdOutOfRange;
}

}  // namespace rlk

extern "C" __global__ void __launch_bounds__(1024)
    rlk_linear_logp_fwd_rows(const __grid_constant__ rlk::LinearLogpCudaArgs a) {
  rlk::list_active_rows(a, true);
}

extern "C" __global__ void __launch_bounds__(256)
    rlk_linear_logp_fwd_pack(const __grid_constant__ rlk::LinearLogpCudaCopy copy) {
  rlk::pack(copy);
}

extern "C" __global__ void __launch_bounds__(rlk::kLogitsTile.threads(), rlk::kLogitsTile.blocks)
    rlk_linear_logp_fwd_main(const __grid_constant__ rlk::LinearLogpCudaArgs a) {
  using namespace rlk;
  const Int64 col_tiles = ceil_div(vocab(a), kLinearLogpLeaf);
  const TilePosition at =
      tile_position(ceil_div(a.strip_rows, kLogitsTile.rows), col_tiles, a.group_tiles);
  const Int64 strip_row = at.row * kLogitsTile.rows;
  const Int64 row0 = a.first_row + strip_row;
  const Int64 left = min(num_active(a) - row0, a.strip_rows - strip_row);
  if (left <= 0) return;
  __shared__ LogitsShared s;
  load_tile_values(s, a, row0, static_cast<int>(min<Int64>(left, kLogitsTile.rows)),
                   at.col * kLinearLogpLeaf);
  LogitsLoop tile;
  tile.zero();
  tile.run({s.hidden}, {s.weight}, static_cast<int>(dim(a)), stages);
  make_logits(tile, s);
  const Int64 to_row = s.row0 - a.first_row;
  store_target_logits(tile, s, a.target_logit + to_row);
  const Int64 to = s.col0 / kLinearLogpLeaf * a.strip_rows + to_row;
  reduce_leaf(tile, a.partial_max + to, a.partial_sum + to, s.num_rows);
}

// Merges a row's partials: segments of leaves ascending, then the segments in order.
extern "C" __global__ void __launch_bounds__(rlk::kMergeRows* rlk::kMergeSegments)
    rlk_linear_logp_fwd_merge(const __grid_constant__ rlk::LinearLogpCudaArgs a) {
  using namespace rlk;
  __shared__ float segment_max[kMergeSegments][kMergeRows];
  __shared__ float segment_sum[kMergeSegments][kMergeRows];
  const int lane = threadIdx.x % kMergeRows, segment = threadIdx.x / kMergeRows;
  const Int64 strip_row = Int64{blockIdx.x} * kMergeRows + lane;
  const Int64 active = a.first_row + strip_row;
  const bool real = strip_row < a.strip_rows && active < num_active(a);
  const Int64 leaves = ceil_div(vocab(a), kLinearLogpLeaf);
  const Int64 length = ceil_div(leaves, kMergeSegments);
  const Int64 begin = segment * length;
  const Int64 end = real ? min(begin + length, leaves) : begin;

  float max = -infinity();
#pragma unroll 4
  for (Int64 leaf = begin; leaf < end; ++leaf) {
    max = max_f32(max, a.partial_max[leaf * a.strip_rows + strip_row]);
  }
  segment_max[segment][lane] = max;
  __syncthreads();
#pragma unroll
  for (int i = 0; i < kMergeSegments; ++i) max = max_f32(max, segment_max[i][lane]);
  const float base = base_of(max);
  float sum = 0.0f;
#pragma unroll 4
  for (Int64 leaf = begin; leaf < end; ++leaf) {
    const Int64 from = leaf * a.strip_rows + strip_row;
    sum = fma_rn(a.partial_sum[from], exp_f32(a.partial_max[from] - base), sum);
  }
  segment_sum[segment][lane] = sum;
  __syncthreads();
  if (segment != 0 || !real) return;
#pragma unroll
  for (int i = 1; i < kMergeSegments; ++i) sum = sum + segment_sum[i][lane];

  const Int64 row = call_row(a, active);
  // Without a list of rows some may have been computed that are not active.
  if (!a.rows && !is_active(a, row)) return write_neutral(a, row);
  const Int64 target = target_of(a, row);
  const float log_sum = log_f32(sum);
  float logp = nan();
  if (target >= 0 && target < vocab(a)) {
    logp = (a.target_logit[strip_row] - max) - log_sum;
  } else {
    report_target(a, row, target);
    max = nan();  // the backward's gradients of the row too
  }
  a.logp[row] = logp;
  if (!a.row_max) return;
  a.row_max[row] = max;
  a.row_log_sum[row] = log_sum;
}
