// SPDX-License-Identifier: Apache-2.0
// The main step of linear_logp's forward: tiles of logits, each reduced to a leaf's partials.
#pragma once

#include "linear_logp/merge.cuh"

namespace rlk {

// The lanes of a warp that share a row.
constexpr int kRowLanes = LogitsLoop::kRowLanes, kRowLanesApart = LogitsLoop::kRowLanesApart;
RLK_DEVICE bool is_first_of_row(int thread) { return thread / kRowLanesApart % kRowLanes == 0; }
// Maximum of a row over them.
RLK_DEVICE float max_over_lanes(float x) {
#pragma unroll
  for (int lanes = kRowLanesApart; lanes < kRowLanes * kRowLanesApart; lanes *= 2) {
    x = max_f32(x, shfl_xor(x, lanes));
  }
  return x;
}
RLK_DEVICE float sum_over_lanes(float x) {
#pragma unroll
  for (int lanes = kRowLanesApart; lanes < kRowLanes * kRowLanesApart; lanes *= 2) {
    x = x + shfl_xor(x, lanes);
  }
  return x;
}

// The logit of the target, of the rows whose target lies in this tile. Registers have no
// index, so the thread that holds it looks it up in memory of its own, where the stages were.
RLK_DEVICE void find_target_logits(LogitsLoop& tile, const LogitsShared& s, float* logits) {
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
    logits[row] = ld_shared_f32(own + element * 4);
  }
}

// The statistics of every row of the tile, whose maxima over each warp's columns are `max`. What
// the warps of a row have lies where the stages were.
RLK_DEVICE void fold_stats(LogitsLoop& tile, const Args& a, const LogitsShared& s,
                           const float (&max)[LogitsLoop::kWarpCols][kLogitsTile.rows], int leaf) {
  constexpr int kWarps = LogitsLoop::kWarpCols, kRows = kLogitsTile.rows;
  LeafStats* const of_warps = reinterpret_cast<LeafStats*>(stages);
  const volatile LogitsShared& place = s;  // read anew for each row: no registers are left
#pragma unroll
  for (int i = 0; i < LogitsLoop::kRowsOfThread; ++i) {
    const int row = tile.row(i);
    float largest = max[0][row];
#pragma unroll
    for (int w = 1; w < kWarps; ++w) largest = max_f32(largest, max[w][row]);
    constexpr int kRun = kX == kFloat32 ? 4 : 2, kStep = kX == kFloat32 ? 64 : 8;
    const LeafStats stats =
        leaf_stats<2 * LogitsLoop::kPairsOfThread, kRun, kStep, kRowLanes, kRowLanesApart>(
            {static_cast<int>(place.col0), place.num_cols}, tile.col(0), largest,
            [&](int k) { return tile.at(i, k / 2, k % 2); });
    if (is_first_of_row(thread_index())) of_warps[tile.warp_col() * kRows + row] = stats;
  }
  __syncthreads();
  const int row = threadIdx.x;
  if (row >= s.num_rows) return;
  LeafStats stats = of_warps[row];
#pragma unroll
  for (int w = 1; w < kWarps; ++w) stats = add_stats(stats, of_warps[w * kRows + row]);
  store_stats(a.partial_stats, leaf * a.strip_rows + s.row0 - a.first_row + row, stats);
}

// The leaf's partial of every row of the tile. Order: each thread over its columns ascending, then
// the lanes of a row pairwise, then the warps of a row.
RLK_DEVICE void reduce_leaf(LogitsLoop& tile, const Args& a, const LogitsShared& s,
                            const float* target_logits, int leaf) {
  __shared__ float shared_max[LogitsLoop::kWarpCols][kLogitsTile.rows];
  __shared__ float shared_sum[LogitsLoop::kWarpCols][kLogitsTile.rows];
  // With entropy: sums of exp(z - max) * (z - max).
  __shared__ float shared_moment[kMayHaveEntropy ? LogitsLoop::kWarpCols : 1]
                                [kMayHaveEntropy ? kLogitsTile.rows : 1];
  const bool first_lane = is_first_of_row(threadIdx.x);
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
  if (has_stats(a)) fold_stats(tile, a, s, shared_max, leaf);
#pragma unroll
  for (int i = 0; i < LogitsLoop::kRowsOfThread; ++i) {
    float max = shared_max[0][tile.row(i)];
#pragma unroll
    for (int w = 1; w < LogitsLoop::kWarpCols; ++w) {
      max = max_f32(max, shared_max[w][tile.row(i)]);
    }
    const float base = base_of(max);
    float sum = 0.0f, moment = 0.0f;
#pragma unroll
    for (int j = 0; j < LogitsLoop::kPairsOfThread; ++j) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const float below = tile.at(i, j, e) - base;
        const float term = exp_f32(below);
        sum = sum + term;
        if constexpr (kMayHaveEntropy) moment = fma_rn(term, exponent_factor(below), moment);
      }
    }
    sum = sum_over_lanes(sum);
    if (first_lane) shared_sum[tile.warp_col()][tile.row(i)] = sum;
    if constexpr (kMayHaveEntropy) {
      moment = sum_over_lanes(moment);
      if (first_lane) shared_moment[tile.warp_col()][tile.row(i)] = moment;
    }
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
    const Int64 to = leaf * a.strip_rows + strip_row;
    a.partial_max[to] = max;
    a.partial_sum[to] = sum;
    if (kMayHaveEntropy && a.partial_moment) {
      float moment = shared_moment[0][row];
#pragma unroll
      for (int w = 1; w < LogitsLoop::kWarpCols; ++w) moment = moment + shared_moment[w][row];
      a.partial_moment[to] = moment;
    }
    if (s.target[row] >= 0) a.target_logit[strip_row] = target_logits[row];
  }
}

RLK_DEVICE void forward_main(const Args& a) {
  const LogpLeaves<kLogpLeaf> leaves = leaves_of(a);
  const TilePosition at =
      tile_position(ceil_div(a.strip_rows, kLogitsTile.rows), leaves.count(), a.group_tiles);
  const Int64 strip_row = at.row * kLogitsTile.rows;
  const Int64 row0 = a.first_row + strip_row;
  const Int64 left = min(num_active(a) - row0, a.strip_rows - strip_row);
  if (left <= 0) return;
  __shared__ LogitsShared s;
  __shared__ int leaf;  // the loop leaves no registers for it
  if (threadIdx.x == 0) leaf = static_cast<int>(at.col);
  const LogpLeaf cols = leaves.at(at.col);
  load_tile_values(s, a, row0, static_cast<int>(min<Int64>(left, kLogitsTile.rows)), cols.begin,
                   cols.cols);
  LogitsLoop tile;
  tile.zero();
  tile.run({s.hidden}, {s.weight}, static_cast<int>(dim(a)), stages);
  __shared__ float target_logits[kLogitsTile.rows];
  make_logits(tile, a, s);
  find_target_logits(tile, s, target_logits);
  reduce_leaf(tile, a, s, target_logits, leaf);
}

}  // namespace rlk
