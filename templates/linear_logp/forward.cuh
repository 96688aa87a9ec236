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

// The dot product with the target, of the rows whose target lies in this tile. Registers have no
// index, so the thread that holds it looks it up in memory of its own, where the stages were.
RLK_DEVICE void find_target_dots(LogitsLoop& tile, const LogitsShared& s, float* dots) {
  constexpr int kPairs = LogitsLoop::kPairsOfThread;
  static_assert(kLogitsTile.threads() * (kPairs + 1) * int{sizeof(float2)} <=
                kLogitsTile.shared_bytes(sizeof(T)));
  const unsigned own = shared_address(stages) + threadIdx.x * (kPairs + 1) * 8;
#pragma unroll
  for (int i = 0; i < LogitsLoop::kRowsOfThread; ++i) {
    const int row = tile.row(i);
    const int element = tile.element(s.target[row]);
    if (element < 0) continue;
#pragma unroll
    for (int j = 0; j < kPairs; ++j)
      st_shared_v2_f32(own + j * 8, tile.at(i, j, 0), tile.at(i, j, 1));
    dots[row] = ld_shared_f32(own + element * 4);
  }
}

// The leaf's partial of every row of the tile. Order: each thread over its columns ascending, then
// the lanes of a row pairwise, then the warps of a row.
RLK_DEVICE void reduce_leaf(LogitsLoop& tile, const Args& a, const LogitsShared& s,
                            const float* target_dots) {
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
  const int row = threadIdx.x;
  if (row < s.num_rows) {
    float max = shared_max[0][row];
    float sum = shared_sum[0][row];
#pragma unroll
    for (int w = 1; w < LogitsLoop::kWarpCols; ++w) {
      max = max_f32(max, shared_max[w][row]);
      sum = sum + shared_sum[w][row];
    }
    const Int64 strip_row = s.row0 - a.first_row + row;
    const Int64 to = s.col0 / kLinearLogpLeaf * a.strip_rows + strip_row;
    a.partial_max[to] = max;
    a.partial_sum[to] = sum;
    const int target = s.target[row];
    if (target >= 0) {
      a.target_logit[strip_row] = logit(target_dots[row], s.bias[target], s.scale[row]);
    }
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
  __shared__ float target_dots[kLogitsTile.rows];
  find_target_dots(tile, s, target_dots);
  make_logits(tile, s);
  reduce_leaf(tile, a, s, target_dots);
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
  const int leaves = static_cast<int>(ceil_div(vocab(a), kLinearLogpLeaf));
  const int length = (leaves + kMergeSegments - 1) / kMergeSegments;
  const int begin = segment * length;
  const int count = real ? min(length, leaves - begin) : 0;
  const float* const first_max = a.partial_max + begin * a.strip_rows + strip_row;
  const float* const first_sum = a.partial_sum + begin * a.strip_rows + strip_row;

  float max = -infinity();
  // Four loads at once; beyond the segment's end they repeat its last leaf.
#pragma unroll 1
  for (int i = 0; i < count; i += 4) {
#pragma unroll
    for (int l = 0; l < 4; ++l) {
      max = max_f32(max, first_max[min(i + l, count - 1) * a.strip_rows]);
    }
  }
  segment_max[segment][lane] = max;
  __syncthreads();
#pragma unroll 4
  for (int i = 0; i < kMergeSegments; ++i) max = max_f32(max, segment_max[i][lane]);
  const float base = base_of(max);
  float sum = 0.0f;
#pragma unroll 1
  for (int i = 0; i < count; i += 4) {
#pragma unroll
    for (int l = 0; l < 4; ++l) {
      const Int64 at = min(i + l, count - 1) * a.strip_rows;
      const float next = fma_rn(first_sum[at], exp_f32(first_max[at] - base), sum);
      sum = i + l < count ? next : sum;
    }
  }
  segment_sum[segment][lane] = sum;
  __syncthreads();
  if (segment != 0 || !real) return;
#pragma unroll 5
  for (int i = 1; i < kMergeSegments; ++i) sum = sum + segment_sum[i][lane];

  const Int64 row = call_row(a, active);
  const Int64 target = target_of(a, row);
  // Without a list of rows some may have been computed that are not active.
  if (!a.rows && !is_active(a, row, target)) return write_neutral(a, row);
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
