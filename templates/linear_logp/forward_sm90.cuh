// SPDX-License-Identifier: Apache-2.0
// The forward's main step on sm_90a for 16-bit types; see kernel.cuh.
//
// Tiles of logits stay in registers: each is folded into the leaf's partial of every row while the
// block's other warpgroup multiplies.
#pragma once

#include "linear_logp/logits_sm90.cuh"
#include "linear_logp/merge.cuh"

namespace rlk {

// Constant of the template kKeep: 1: exponentials are kept; 0: they are not; -1: run-time, where
// there is memory for them.
constexpr bool kMayKeep = kKeep != 0 && kUsesSm90Loop;

// What a warpgroup keeps of its tile, in memory, as the epilogue leaves no registers for it.
struct KeepSm90 {
  PlaceSm90
      place;      // num_cols is 0 where nothing is; rows are those of the call, so first is row 0's
  int first_row;  // active row of the tile's first
  float* maximum;  // of row 0
};

// The epilogue of the loop.
struct Fold : LogitsSm90 {
  volatile KeepSm90 (&keep)[kMayKeep ? 2 : 1];
  unsigned slabs;

  RLK_DEVICE Fold(const LogitsSm90& logits, volatile KeepSm90 (&keep)[kMayKeep ? 2 : 1],
                  unsigned slabs)
      : LogitsSm90(logits), keep(keep), slabs(slabs) {}

  RLK_DEVICE void begin(Sm90Loop& tile, TilePosition at) {
    const LogpLeaf leaf = cols_of(at);
    load_values(tile, at, leaf);
    set_place(tile, at, leaf);
    if (kMayKeep) set_keep(tile, at);
  }

  RLK_DEVICE void end(Sm90Loop& tile, TilePosition) {
    const LogitsSm90Values& s = shared[tile.group()];
    const volatile FoldPlace& place = places(tile.group());
    tile.sync_group();
    make_logits(tile, s, place.cols);
    if (has_stats(a)) {
      unrolled<Sm90Loop::kRowsOfThread>([&](auto i) { fold_stats(tile, i, row_max(tile, i)); });
    }
    unrolled<Sm90Loop::kRowsOfThread>([&](auto i) {
      const float max = row_max(tile, i);
      if (kMayKeep) keep_maximum(tile, i, max);
      store_target(tile, s, place, i);
      const Sums sums = row_sums(tile, i, max);
      const int row = tile.row(i);
      if (row >= place.num_rows || thread_index() % 4 != 0) return;
      const Int64 to = place.to + row;
      a.partial_max[to] = max;
      a.partial_sum[to] = sums.sum;
      if (kMayHaveEntropy && a.partial_moment) a.partial_moment[to] = sums.moment;
    });
    if (kMayKeep) keep_exponentials(tile);
  }

 private:
  // Where a warpgroup's tile lies: in memory, as the epilogue leaves no registers.
  struct FoldPlace {
    Int64 to;                 // of the tile's first row in the partials
    int first_row, num_rows;  // in the strip; real ones of the tile
    int begin, cols;          // of the leaf
  };
  static RLK_DEVICE volatile FoldPlace& places(int group) {
    __shared__ volatile FoldPlace places[2];
    return places[group];
  }
  // The logit of a row's target, by the thread that has it.
  template <class Index>
  RLK_DEVICE void store_target(Sm90Loop& tile, const LogitsSm90Values& s,
                               const volatile FoldPlace& place, Index i) const {
    const int row = tile.row(i);
    const int element = tile.element(s.target[row - tile.first_row()]);
    if (element < 0 || row >= place.num_rows) return;
    float z = tile.at(i, 0, 0);
#pragma unroll
    for (int j = 0; j < Sm90Loop::kPairsOfThread; ++j) {
      const float z0 = tile.at(i, j, 0), z1 = tile.at(i, j, 1);
      z = element == 2 * j ? z0 : z;
      z = element == 2 * j + 1 ? z1 : z;
    }
    a.target_logit[place.first_row + row] = z;
  }
  RLK_DEVICE void set_keep(Sm90Loop& tile, TilePosition at) {
    if (tile.thread_of_group() != 0) return;
    volatile KeepSm90& own = keep[tile.group()];
    const LogpLeaves<kLogpLeaf> leaves = leaves_of(a);
    const int leaf = static_cast<int>(at.col), segment = leaf / leaves.of_segment();
    own.place.num_cols = 0;
    if (!a.kept.data || segment >= a.kept.num_segments) return;
    const int within = leaf - segment * leaves.of_segment();
    const int row0 = static_cast<int>(at.row) * Sm90Loop::kRows;
    Sm90Type* const first = static_cast<Sm90Type*>(a.kept.data) + segment * a.kept.step;
    own.place.first = first + within * kLogpLeaf;
    own.place.num_rows = num_rows - row0;
    own.place.num_cols = min(kLogpLeaf, a.kept.width - within * kLogpLeaf);
    own.first_row = first_row + row0;
    own.maximum = reinterpret_cast<float*>(first + a.kept.width) + within;
  }
  template <class Index>
  RLK_DEVICE void keep_maximum(Sm90Loop& tile, Index i, float max) {
    volatile KeepSm90& own = keep[tile.group()];
    if (own.place.num_cols == 0 || thread_index() % 4 != 0) return;
    const int row = tile.row(i);
    if (row >= own.place.num_rows) return;
    own.maximum[call_row(a, own.first_row + row) * (a.kept.pitch / 2)] = max;
  }
  RLK_DEVICE void keep_exponentials(Sm90Loop& tile) {
    volatile KeepSm90& own = keep[tile.group()];
    if (own.place.num_cols == 0) return;
    __syncwarp();
    SlabSm90::store<kSm90Type, 2>(
        tile, slabs, own.place.num_rows, own.place.num_cols, true,
        [&](int row) {
          return static_cast<Sm90Type*>(own.place.first) +
                 call_row(a, own.first_row + row) * a.kept.pitch;
        },
        [&tile](auto i) {
          return [&tile, i](int j) {
            return float2{tile.at(i, j, 0) * kExponentialScale<kSm90Type>,
                          tile.at(i, j, 1) * kExponentialScale<kSm90Type>};
          };
        });
  }

  RLK_DEVICE void set_place(Sm90Loop& tile, TilePosition at, const LogpLeaf& leaf) {
    if (tile.thread_of_group() != 0) return;
    volatile FoldPlace& place = places(tile.group());
    const int first_row = static_cast<int>(at.row) * Sm90Loop::kRows;
    place.to = at.col * a.strip_rows + first_row;
    place.first_row = first_row;
    place.num_rows = num_rows - first_row;
    place.begin = leaf.begin;
    place.cols = leaf.cols;
  }
  template <class Index>
  RLK_DEVICE void fold_stats(Sm90Loop& tile, Index i, float max) {
    const volatile FoldPlace& place = places(tile.group());
    const LeafStats stats = leaf_stats<2 * Sm90Loop::kPairsOfThread, 2, 8, Sm90Loop::kRowLanes, 1>(
        {place.begin, place.cols}, tile.col(0), max,
        [&](int k) { return tile.at(i, k / 2, k % 2); });
    if (tile.row(i) >= place.num_rows || thread_index() % 4 != 0) return;
    store_stats(a.partial_stats, place.to + tile.row(i), stats);
  }

  // Where exponentials may be kept they take the logits' place.
  struct Sums {
    float sum = 0.0f;     // of exp(z - max)
    float moment = 0.0f;  // of exp(z - max) * (z - max), with entropy
  };
  template <class Index>
  static RLK_DEVICE Sums row_sums(Sm90Loop& tile, Index i, float max) {
    const float base = base_of(max);
    Sums s;
#pragma unroll
    for (int j = 0; j < Sm90Loop::kPairsOfThread; ++j) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const float below = tile.at(i, j, e) - base;
        const float term = exp_f32(below);
        s.sum = s.sum + term;
        if (kMayKeep) tile.at(i, j, e) = term;
        if constexpr (kMayHaveEntropy) s.moment = fma_rn(term, exponent_factor(below), s.moment);
      }
    }
    s.sum = s.sum + shfl_xor(s.sum, 1);
    s.sum = s.sum + shfl_xor(s.sum, 2);
    if constexpr (kMayHaveEntropy) {
      s.moment = s.moment + shfl_xor(s.moment, 1);
      s.moment = s.moment + shfl_xor(s.moment, 2);
    }
    return s;
  }
};

RLK_DEVICE void forward_main_sm90(const Args& a, const LinearLogpCudaMaps& maps) {
  __shared__ Sm90Loop::Shared barriers;
  __shared__ LogitsSm90Values values[2];
  __shared__ volatile KeepSm90 keep[kMayKeep ? 2 : 1];
  __shared__ int shared_num_rows;  // in memory, as the epilogue leaves no register for it
  const Int64 left = min(num_active(a) - a.first_row, a.strip_rows);
  const int num_rows = left > 0 ? static_cast<int>(left) : 0;
  if (threadIdx.x == 0) shared_num_rows = num_rows;
  const Raster raster(ceil_div(num_rows, Sm90Loop::kRowsOfCluster), leaves_of(a).count(),
                      a.group_tiles);
  const TensorMap& hidden = num_active(a) < a.num_rows ? maps.gathered : maps.hidden;
  Fold fold({a, values, static_cast<int>(a.first_row), shared_num_rows}, keep,
            shared_address(stages) + Sm90Loop::kSharedBytes);
  Sm90Loop::run({hidden, maps.weight, static_cast<int>(dim(a)), raster, a.next_tile}, barriers,
                stages, fold);
}

}  // namespace rlk
