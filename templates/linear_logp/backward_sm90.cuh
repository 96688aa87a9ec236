// SPDX-License-Identifier: Apache-2.0
// The backward's products by the loop of sm_90a; see kernel.cuh.
#pragma once

#include "linear_logp/logits_sm90.cuh"

namespace rlk {

// --- dZ: a tile of logits, turned in registers.

struct GradRowsSm90 {
  float max[Sm90Loop::kRowsOfGroup], log_sum[Sm90Loop::kRowsOfGroup];
  float all[Sm90Loop::kRowsOfGroup], exact[Sm90Loop::kRowsOfGroup];
};

class MakeGradLogits : public LogitsSm90 {
 public:
  GradRowsSm90 (&rows)[2];
  volatile PlaceSm90 (&places)[2];  // in memory, as the epilogue leaves no registers for it
  unsigned slabs;

  RLK_DEVICE MakeGradLogits(const LogitsSm90& logits, GradRowsSm90 (&rows)[2],
                            volatile PlaceSm90 (&places)[2], unsigned slabs)
      : LogitsSm90(logits), rows(rows), places(places), slabs(slabs) {}

  RLK_DEVICE void begin(Sm90Loop& tile, TilePosition at) {
    load_values(tile, at, cols_of(at));
    const int t = tile.thread_of_group();
    if (t == 0) {
      const int row0 = first_row_of(at), leaf = static_cast<int>(at.col);
      volatile PlaceSm90& place = places[tile.group()];
      place.first = static_cast<Sm90Type*>(a.wave.grad_logits) + row0 * a.wave.pitch +
                    column_of_leaf(a, leaf);
      place.num_rows = static_cast<int>(min<Int64>(a.num_rows - row0, Sm90Loop::kRows));
      place.num_cols = width_of_leaf(a, leaf);
    }
    if (t >= Sm90Loop::kRowsOfGroup) return;
    const LinearLogpRowGrad grad = row_grad(first_row_of(at) + tile.first_row() + t);
    GradRowsSm90& own = rows[tile.group()];
    own.max[t] = grad.max;
    own.log_sum[t] = grad.log_sum;
    own.all[t] = grad.of.all;
    own.exact[t] = grad.exact;
  }

  RLK_DEVICE void end(Sm90Loop& tile, TilePosition at) {
    const LogitsSm90Values& s = shared[tile.group()];
    tile.sync_group();
    if (is_made_of_exponentials(a)) {
      make_logits(tile, s, num_cols(at));
      unrolled<Sm90Loop::kRowsOfThread>([&](auto i) { find_factor(tile, i); });
      __syncwarp();
      store(tile, [&](auto i) {
        const Exponentials row = exponentials(tile, i);
        return [&tile, i, row](int j) { return row.turn(tile.at(i, j, 0), tile.at(i, j, 1)); };
      });
      return store_targets(tile, s);
    }
    if constexpr (kMayTakeLogits) {
      start_logits(tile, s, num_cols(at));
      unrolled<Sm90Loop::kRowsOfThread>([&](auto i) {
        if (has_cap_argument(a)) {
          turn_logits<true>(tile, s, at, i);
        } else {
          turn_logits<false>(tile, s, at, i);
        }
      });
      set_tail(tile, num_cols(at), 0.0f);
      store(tile, [&](auto i) {
        return [&tile, i](int j) { return float2{tile.at(i, j, 0), tile.at(i, j, 1)}; };
      });
    }
  }

 private:
  static RLK_DEVICE int first_row_of(TilePosition at) {
    return static_cast<int>(at.row) * Sm90Loop::kRows;
  }
  // A row of the tile that nobody asked for gives zeros: its hidden row is zero.
  RLK_DEVICE LinearLogpRowGrad row_grad(int row) const {
    if (row < num_rows) return a.row_grad[row];
    return {{0.0f, 0.0f, 0.0f}, 0.0f, 0.0f, infinity()};
  }

  template <class Turn>
  RLK_DEVICE void store(Sm90Loop& tile, Turn turn) {
    const volatile PlaceSm90& place = places[tile.group()];
    SlabSm90::store<kSm90Type>(
        tile, slabs, place.num_rows, place.num_cols, true,
        [first = static_cast<Sm90Type*>(place.first),
         pitch = static_cast<int>(a.wave.pitch)](int row) { return first + Int64{row} * pitch; },
        turn);
  }

  // A row's logits as dZ, but for the target's.
  struct Exponentials {
    float base, factor;
    RLK_DEVICE float2 turn(float x, float y) const {
      const float2 kept = Element<kSm90Type>::unpack(
          pack_exponentials<kSm90Type>(exp_f32(x - base), exp_f32(y - base)));
      return {kept.x * factor, kept.y * factor};
    }
  };
  // Leaves the maximum of a row's leaf, and what its exponentials become dZ by, where the row's
  // maximum and `all` were.
  template <class Index>
  RLK_DEVICE void find_factor(Sm90Loop& tile, Index i) {
    volatile GradRowsSm90& own = rows[tile.group()];
    const int row = tile.row(i) - tile.first_row();
    const float max = row_max(tile, i);
    const float factor =
        exponential_factor<kSm90Type>(max, own.max[row], own.log_sum[row], own.all[row]);
    __syncwarp();
    if (thread_index() % 4 != 0) return;
    own.max[row] = base_of(max);
    own.all[row] = factor;
  }
  template <class Index>
  RLK_DEVICE Exponentials exponentials(Sm90Loop& tile, Index i) const {
    const volatile GradRowsSm90& own = rows[tile.group()];
    const int row = tile.row(i) - tile.first_row();
    return {own.max[row], own.all[row]};
  }
  // dZ of the targets' columns, in memory: a lane a row, after all lanes have stored the others.
  RLK_DEVICE void store_targets(Sm90Loop& tile, const LogitsSm90Values& s) const {
    __syncwarp();
    const int lane = tile.thread_of_group() % 32;
    if (lane >= Sm90Loop::kRowsOfGroup / 4) return;
    const int row = tile.thread_of_group() / 32 * 16 + lane % 16 + lane / 16 * 64;
    const int target = s.target[row];
    if (target < 0) return;
    const volatile PlaceSm90& place = places[tile.group()];
    static_cast<Sm90Type*>(place.first)[(tile.first_row() + row) * a.wave.pitch + target] =
        Element<kSm90Type>::from_float(rows[tile.group()].exact[row]);
  }

  template <bool kCap, class Index>
  RLK_DEVICE void turn_logits(Sm90Loop& tile, const LogitsSm90Values& s, TilePosition at, Index i) {
    const int row = tile.row(i) - tile.first_row();
    const LinearLogpRowGrad grad = row_grad(first_row_of(at) + tile.row(i));
    turn_row<kCap>(tile, i, a, s.scale[row], grad.max, grad.log_sum, grad.of,
                   tile.element(s.target[row]));
  }
};

RLK_DEVICE void make_dz_sm90(const Args& a, const LinearLogpCudaGradMaps& maps) {
  __shared__ Sm90Loop::Shared barriers;
  __shared__ LogitsSm90Values values[2];
  __shared__ GradRowsSm90 rows[2];
  __shared__ volatile PlaceSm90 places[2];
  __shared__ int shared_num_rows;  // in memory, as the epilogue leaves no register for it
  const int num_rows = static_cast<int>(num_active(a));
  if (threadIdx.x == 0) shared_num_rows = num_rows;
  // Without an active row one tile of zeros, which the product over rows reads.
  const Raster raster(ceil_div(num_rows ? num_rows : 1, Sm90Loop::kRows),
                      a.wave.num_segments * a.wave.num_leaves, a.group_tiles);
  const TensorMap& hidden = num_active(a) < a.num_rows ? maps.gathered : maps.hidden;
  MakeGradLogits turn({a, values, 0, shared_num_rows}, rows, places,
                      shared_address(stages) + Sm90Loop::kSharedBytes);
  Sm90Loop::run({hidden, maps.weight, static_cast<int>(dim(a)), raster, a.next_tile}, barriers,
                stages, turn);
}

// --- dZ from exponentials that were kept, in place where dZ has their memory.

// Rows [first, end) of a strip of columns, by `warps` warps of the block in turn, 8 rows each. What
// a row's dZ is made of is made by one lane for each of the strip's two leaves.
// Where active rows move up, a row is written after the one that lay there was read, as all warps
// read what they have in hand before one writes.
RLK_DEVICE void turn_strip(const Args& a, int strip, int warps, Int64 first, Int64 end) {
  static_assert(kLinearLogpKeptStrip % 64 == 0 && kLogpLeaf % 64 == 0 &&
                kLinearLogpKeptStrip <= kLogpLeaf + 64);  // so a strip has columns of two leaves
  const int strips = static_cast<int>(ceil_div(a.wave.width, kLinearLogpKeptStrip));
  const int segment = strip / strips, lane = thread_index() % 32;
  const int begin = (strip - segment * strips) * kLinearLogpKeptStrip, col = begin + lane * 8;
  const int own_leaf = begin / kLogpLeaf + lane / 16;  // of the wave's in the segment
  const bool is_real = segment < a.wave.num_segments && col < a.wave.width;
  const Int64 count = num_active(a);
  const WaveSegment columns = wave_segment(a, segment);
  const Int64 kept_segment = is_real ? a.wave.first_segment + segment : 0;
  const Sm90Type* const kept =
      static_cast<const Sm90Type*>(a.kept.data) + kept_segment * a.kept.step;
  const Sm90Type* const from = kept + (is_real ? a.wave.first_leaf * kLogpLeaf + col : 0);
  const bool has_leaf = segment < a.wave.num_segments && own_leaf * kLogpLeaf < a.wave.width;
  const Int64 max_at = a.kept.width + (a.wave.first_leaf + own_leaf) * 2;
  const int lane_of_leaf = (col / kLogpLeaf - begin / kLogpLeaf) * 16;
  Sm90Type* const to = static_cast<Sm90Type*>(a.wave.grad_logits) + segment * a.wave.step + col;
#pragma unroll 1
  for (; first < end; first += 8 * warps) {
    const Int64 row0 = first + (warps > 1 ? thread_index() / 32 * 8 : 0);
    const Int64 own = row0 + lane % 8;
    const int own_row = count > 0 ? static_cast<int>(call_row(a, min(own, count - 1))) : 0;
    unsigned x[8][4];
#pragma unroll
    for (int r = 0; r < 8; ++r) {  // also where there is nothing, so that no load waits for another
      const Int64 row = __shfl_sync(kFullWarp, own_row, r);
      ld_stream(x[r], from + row * a.kept.pitch);
    }
    float factor = 0.0f, exact = 0.0f;
    int target = -1;  // of the segment's columns
    if (has_leaf && own < count) {
      const LinearLogpRowGrad grad = a.row_grad[own];
      const float max = *reinterpret_cast<const float*>(kept + own_row * a.kept.pitch + max_at);
      factor = exponential_factor<kSm90Type>(max, grad.max, grad.log_sum, grad.of.all);
      exact = grad.exact;
      const Int64 at = column_of(a, target_of(a, own_row)) - columns.begin;
      if (at >= 0 && at < columns.cols) target = static_cast<int>(at);
    }
    if (warps > 1) __syncthreads();
#pragma unroll
    for (int r = 0; r < 8; ++r) {
      if (row0 + r >= end) break;
      const float all = __shfl_sync(kFullWarp, factor, lane_of_leaf + r);
      const float exact_of_row = __shfl_sync(kFullWarp, exact, r);
      const int at = __shfl_sync(kFullWarp, target, r) - col;
      if (!is_real) continue;
      Sm90Type* const row = to + (row0 + r) * a.wave.pitch;
      if (row0 + r >= count) {
        st_global(row, {0, 0, 0, 0});
        continue;
      }
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float2 term = Element<kSm90Type>::unpack(x[r][i]);
        x[r][i] = Element<kSm90Type>::pack(term.x * all, term.y * all);
      }
      st_global(row, x[r]);
      if (at >= 0 && at < 8) row[at] = Element<kSm90Type>::from_float(exact_of_row);
    }
  }
}

// Where all rows are active a warp takes a strip and a part of the rows; else a block takes a strip
// and all of them.
RLK_DEVICE void turn_kept(const Args& a) {
  // Zeros up to the last term that a step of the sums over rows reads, wherever a chunk's begin.
  const Int64 beyond = a.chunk.terms ? kLinearLogpCarriedRows : 0;
  const Int64 count = num_active(a), filled = min(filled_rows(count + beyond), a.num_rows);
  const bool moves = count < a.num_rows;
  const int strips =
      a.wave.num_segments * static_cast<int>(ceil_div(a.wave.width, kLinearLogpKeptStrip));
  const Int64 part = moves ? filled : ceil_div(filled, gridDim.y);
  const Int64 first = moves ? 0 : blockIdx.y * part;
  const int step = moves ? static_cast<int>(gridDim.x * gridDim.y) : strips;
  int strip = moves ? static_cast<int>(blockIdx.y * gridDim.x + blockIdx.x)
                    : static_cast<int>(blockIdx.x) * 8 + static_cast<int>(threadIdx.x) / 32;
#pragma unroll 1
  for (; strip < strips; strip += step) {
    turn_strip(a, strip, moves ? 8 : 1, first, min(first + part, filled));
  }
}

// --- Chunks of rows.

RLK_DEVICE LinearLogpTerms terms_of(const Args& a) {
  if (kUsesSm90Loop && a.chunk.terms) return *a.chunk.terms;
  return {0, num_active(a), 0, 0};
}

// By all threads of a block: the terms of the chunk's sums, and what the next one finds. Sums are
// of whole steps of the loop but in the last chunk, whose hidden rows get zeros as dZ does.
RLK_DEVICE void begin_chunk(const Args& a) {
  const LinearLogpCudaChunk& chunk = a.chunk;
  const Int64 count = num_active(a);
  if (threadIdx.x == 0) {
    const Int64 waiting = chunk.is_first ? 0 : chunk.state[0], all = waiting + count;
    const Int64 left = chunk.is_last ? 0 : all % kLinearLogpCarriedRows;
    const int has_sums = !chunk.is_first && chunk.state[1] != 0;
    *chunk.terms = {-waiting, all - left, left, has_sums};
    chunk.state[0] = left;
    chunk.state[1] = has_sums || all > left;
  }
  if (!chunk.is_last) return;
  const Int64 end = min(count + kLinearLogpCarriedRows, a.num_rows) * a.gathered_pitch;
  Sm90Type* const hidden = static_cast<Sm90Type*>(const_cast<void*>(a.gathered));
#pragma unroll 1
  for (Int64 i = count * a.gathered_pitch + threadIdx.x * 8; i < end; i += blockDim.x * 8) {
    st_global(hidden + i, {0, 0, 0, 0});
  }
}

// Moves the rows that are left to where they wait, by a thread for each 16 bytes of a row of dZ and
// of hidden, ascending: they may move within themselves.
RLK_DEVICE void carry_rows(const Args& a) {
  const LinearLogpTerms terms = *a.chunk.terms;
  const Int64 from = terms.first + terms.count, to = -terms.num_left;
  if (from == to) return;
  Sm90Type* matrix = static_cast<Sm90Type*>(a.wave.grad_logits);
  Int64 pitch = a.wave.pitch, col = (Int64{blockIdx.x} * blockDim.x + threadIdx.x) * 8;
  if (col < pitch) {
    if (col % a.wave.step >= a.wave.width) return;
  } else {
    col -= pitch;
    matrix = static_cast<Sm90Type*>(const_cast<void*>(a.gathered));
    pitch = a.gathered_pitch;
    if (col >= pitch) return;
  }
  const int num_rows = static_cast<int>(terms.num_left);
#pragma unroll 1
  for (int row = 0; row < num_rows; row += 8) {
    unsigned x[8][4];
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      if (row + i < num_rows) ld_stream(x[i], matrix + (from + row + i) * pitch + col);
    }
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      if (row + i < num_rows) st_global(matrix + (to + row + i) * pitch + col, x[i]);
    }
  }
}

// --- Both gradients.

template <bool kOfWeight>
struct GradientSm90Shape {
  static constexpr LinearLogpSm90GradientTile kTile =
      kOfWeight ? kLinearLogpSm90WeightTile : kLinearLogpSm90HiddenTile;
  static constexpr int kRows = kTile.rows, kCols = kTile.cols, kBoxes = 1;
  static constexpr int kStages = kTile.stages, kGroups = 2, kCluster = 1;
  static constexpr bool kPingPong = kTile.ping_pong, kDynamic = false;
};
template <bool kOfWeight>
using GradientSm90Loop = LoopSm90<kSm90Type, GradientSm90Shape<kOfWeight>,
                                  kOfWeight ? Major::kLanes : Major::kTerms, Major::kLanes>;

// Sums over a segment's columns, of a tile of grad_hidden.
class SegmentSums {
 public:
  using Loop = GradientSm90Loop<false>;
  static constexpr bool kLoads = true;
  static constexpr int kTailCols = 0;
  const Args& a;
  PlaceSm90 (&places)[2];
  unsigned slabs;
  int num_rows, col_tiles;  // of the strip; of a segment

  RLK_DEVICE int num_cols(TilePosition) const { return Loop::kCols; }
  RLK_DEVICE TileSource source(TilePosition at) const {
    const auto [segment, index] = tile_of_segment(at.col, col_tiles);
    return {static_cast<int>(a.first_row) + static_cast<int>(at.row) * Loop::kRows,
            index * Loop::kCols, segment * a.wave.step,
            static_cast<int>(wave_segment(a, segment).begin)};
  }
  RLK_DEVICE void begin(Loop& tile, TilePosition at) {
    tile.sync_group();  // the last tile's place was read
    if (tile.thread_of_group() == 0) {
      const auto [segment, index] = tile_of_segment(at.col, col_tiles);
      const int col0 = index * Loop::kCols;
      const int row0 = static_cast<int>(at.row) * Loop::kRows;
      places[tile.group()] = {a.segment_sums + (segment * a.strip_rows + row0) * a.sum_pitch + col0,
                              num_rows - row0,
                              static_cast<int>(min<Int64>(a.sum_pitch - col0, Loop::kCols))};
    }
    tile.sync_group();
  }
  RLK_DEVICE auto row_start(const PlaceSm90& place) const {
    return [first = static_cast<float*>(place.first),
            pitch = static_cast<int>(a.sum_pitch)](int row) { return first + Int64{row} * pitch; };
  }
  RLK_DEVICE int load(Loop& tile, TilePosition) {
    const PlaceSm90& place = places[tile.group()];
    for_each_in_memory_sm90(tile, a.wave.first_leaf > 0 ? place.num_rows : 0, place.num_cols,
                            row_start(place), [](float& sum, float x) { sum = x; });
    return 1;
  }
  RLK_DEVICE void end(Loop& tile, TilePosition) {
    const PlaceSm90& place = places[tile.group()];
    SlabSm90::store<kFloat32>(tile, slabs, place.num_rows, place.num_cols, true, row_start(place));
  }
};

RLK_DEVICE void make_dh_sm90(const Args& a, const LinearLogpCudaGradMaps& maps) {
  using Loop = SegmentSums::Loop;
  __shared__ Loop::Shared barriers;
  __shared__ PlaceSm90 places[2];
  const Int64 left = min(num_active(a) - a.first_row, a.strip_rows);
  const int num_rows = left > 0 ? static_cast<int>(left) : 0;
  const int col_tiles = static_cast<int>(ceil_div(dim(a), Loop::kCols));
  const Raster raster(ceil_div(num_rows, Loop::kRows), a.wave.num_segments * col_tiles,
                      a.group_tiles);
  SegmentSums sums{a, places, shared_address(stages) + Loop::kSharedBytes, num_rows, col_tiles};
  Loop::run({maps.grad_logits, maps.weight_lanes, a.wave.width, raster, nullptr}, barriers, stages,
            sums);
}

// A tile of grad_weight, whose rows lie side by side: at a constant distance where kD is one, so
// that a store needs no address of its own.
class WeightSums {
 public:
  using Loop = GradientSm90Loop<true>;
  static constexpr bool kLoads = true;
  static constexpr int kTailCols = kD < 0 ? -1 : kD % Loop::kCols;
  const Args& a;
  PlaceSm90 (&places)[2];
  unsigned slabs;
  int row_tiles;      // of a segment
  int first_term;     // of both tensor maps
  const float* sums;  // of rows before, or null

  RLK_DEVICE int num_cols(TilePosition at) const {
    return static_cast<int>(dim(a)) - static_cast<int>(at.col) * Loop::kCols;
  }
  RLK_DEVICE TileSource source(TilePosition at) const {
    const auto [segment, index] = tile_of_segment(at.row, row_tiles);
    return {segment * a.wave.step + index * Loop::kRows, static_cast<int>(at.col) * Loop::kCols,
            first_term, first_term};
  }
  RLK_DEVICE void begin(Loop& tile, TilePosition at) {
    tile.sync_group();  // the last tile's place was read
    if (tile.thread_of_group() == 0) {
      const auto [segment, index] = tile_of_segment(at.row, row_tiles);
      const int row0 = index * Loop::kRows;
      const int col0 = static_cast<int>(at.col) * Loop::kCols;
      const WaveSegment columns = wave_segment(a, segment);
      const Int64 first = first_of(at);
      places[tile.group()] = {
          static_cast<char*>(a.grad_weight) +
              first * (a.grad_weight_type == kSm90Type ? int{sizeof(Sm90Type)} : 4),
          columns.cols - row0, static_cast<int>(min<Int64>(dim(a) - col0, Loop::kCols))};
    }
    tile.sync_group();
  }
  RLK_DEVICE int load(Loop& tile, TilePosition at) {
    if (!sums) return 0;
    const PlaceSm90& place = places[tile.group()];
    for_each_in_memory_sm90(
        tile, place.num_rows, place.num_cols,
        [first = sums + first_of(at), pitch = static_cast<int>(dim(a))](int row) {
          return first + Int64{row} * pitch;
        },
        [](float& sum, float x) { sum = x; });
    return 1;
  }
  RLK_DEVICE void end(Loop& tile, TilePosition) {
    if (kSm90Type == kFloat16) scale_tile(tile, power_of_two(-*a.call_shift));
    if (a.grad_weight_type == kSm90Type) return store<kSm90Type>(tile);
    const PlaceSm90& place = places[tile.group()];
    if (a.adds_weight) {
      for_each_in_memory_sm90(tile, place.num_rows, place.num_cols, row_start<float>(place),
                              [](float& sum, float x) { sum = x + sum; });
    }
#pragma unroll 1
    for (int i = 0; i < Loop::kRowsOfThread; i += 2) {
      FirstRowsSm90<Loop> rows(tile);
      store<kFloat32>(rows);
      tile.next_rows();
    }
  }

 private:
  // Of the tile's first element among the matrix's.
  RLK_DEVICE Int64 first_of(TilePosition at) const {
    const auto [segment, index] = tile_of_segment(at.row, row_tiles);
    return (wave_segment(a, segment).begin + index * Loop::kRows) * dim(a) + at.col * Loop::kCols;
  }
  template <class Stored>
  RLK_DEVICE auto row_start(const PlaceSm90& place) const {
    return [first = static_cast<Stored*>(place.first), pitch = static_cast<int>(dim(a))](int row) {
      return first + Int64{row} * pitch;
    };
  }
  template <int kType, class Rows>
  RLK_DEVICE void store(Rows& tile) {
    const PlaceSm90& place = places[Loop::group()];
    SlabSm90::store<kType>(tile, slabs, place.num_rows, place.num_cols,
                           stores_whole_chunks<kType>(a.grad_weight, dim(a), dim(a)),
                           row_start<typename Element<kType>::Type>(place));
  }
};

RLK_DEVICE void make_dw_sm90(const Args& a, const LinearLogpCudaGradMaps& maps) {
  using Loop = WeightSums::Loop;
  __shared__ Loop::Shared barriers;
  __shared__ PlaceSm90 places[2];
  const int num_rows = static_cast<int>(num_active(a));
  const LinearLogpTerms terms = terms_of(a);
  const int count = static_cast<int>(terms.count), first = static_cast<int>(terms.first);
  if (num_rows < 0 || (count == 0 && a.chunk.terms && !a.chunk.is_last)) return;
  const int row_tiles = static_cast<int>(ceil_div(a.wave.width, Loop::kRows));
  const Raster raster(a.wave.num_segments * row_tiles, ceil_div(dim(a), Loop::kCols),
                      a.group_tiles);
  const TensorMap& hidden = num_rows < a.num_rows ? maps.gathered_lanes : maps.hidden_lanes;
  WeightSums sums{a,
                  places,
                  shared_address(stages) + Loop::kSharedBytes,
                  row_tiles,
                  a.chunk.terms ? first + kLinearLogpCarriedRows : 0,
                  terms.has_sums ? a.chunk.weight_sums : nullptr};
  Loop::run({maps.grad_logits_lanes, hidden, count ? count : 1, raster, nullptr}, barriers, stages,
            sums);
}

}  // namespace rlk
