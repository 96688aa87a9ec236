// SPDX-License-Identifier: Apache-2.0
// A tile of logits of linear_logp, in registers: what the forward reduces and the backward turns
// into dZ.
#pragma once

#include "common/cuda/loops.cuh"
#include "linear_logp/wave.cuh"

namespace rlk {

RLK_DEVICE Int64 dim(const Args& a) { return kD >= 0 ? kD : a.dim; }

// Where active row i of the hidden matrix, row `row` of the call, starts.
template <class T>
RLK_DEVICE const T* hidden_row(const Args& a, Int64 i, Int64 row) {
  return static_cast<const T*>(a.hidden) + (a.hidden_packed ? i : row) * a.hidden_pitch;
}

constexpr CudaTile kLogitsTile = linear_logp_cuda_logits_tile(kX, RLK_SHARED_LIMIT);
using LogitsShape = Shape<kLogitsTile.rows, kLogitsTile.cols, kLogitsTile.k, kLogitsTile.stages,
                          kLogitsTile.warp_rows, kLogitsTile.warp_cols, (kD >= 0)>;
using T = Element<kX>::Type;

using LogitsLoop = Loops<kX, LogitsShape>::KK;

// What a tile keeps in shared memory beside the stages.
struct LogitsShared {
  const void* hidden[kLogitsTile.rows];
  const void* weight[kLogitsTile.cols];
  float scale[kLogitsTile.rows];
  int target[kLogitsTile.rows];  // column of the tile, or -1: in the rows beyond num_rows too
  float bias[kLogitsTile.cols];
  // Where the tile lies; kept here because the loop leaves no registers for it.
  Int64 row0, col0;
  int num_rows, num_cols;
};

// Columns beyond the last of the tile repeat that one with a bias of -inf, by which they become
// -inf, or NaN in a row where the last one is inf or NaN and so all is NaN. A cap would make a
// number of it, a logit scale that is not above 0 inf or NaN: then set_tail() does it at the end.
RLK_DEVICE bool ends_by_bias(const Args& a) {
  return !is_capped(a) && (kLogitScale == 0 || a.logit_scale > 0.0f);
}

// Fills `s` for active rows [row0, row0 + rows of a tile), of which num_rows are real, and columns
// [col0, col0 + num_cols), at most a leaf and maybe none. The others repeat a real one, and what
// they give is read by nothing.
RLK_DEVICE void load_tile_values(LogitsShared& s, const Args& a, Int64 row0, int num_rows,
                                 Int64 col0, int num_cols) {
  if (threadIdx.x == 0) {
    s.row0 = row0;
    s.col0 = col0;
    s.num_rows = num_rows;
    s.num_cols = num_cols;
  }
  // No loops: the compiler would write them out for every combination of what is given.
  static_assert(kLogitsTile.rows <= kLogitsTile.threads() &&
                kLogitsTile.cols <= kLogitsTile.threads());
  const int i = thread_index();
  if (i < kLogitsTile.rows) {
    const Int64 active = row0 + min(i, num_rows - 1);
    const Int64 row = call_row(a, active);
    s.hidden[i] = hidden_row<T>(a, active, row);
    s.scale[i] = scale_of(a, row);
    const Int64 t = column_of(a, target_of(a, row));
    const bool here = t >= col0 && t < col0 + num_cols && i < num_rows;
    s.target[i] = here ? static_cast<int>(t - col0) : -1;
  }
  if (i < kLogitsTile.cols) {
    const bool real = i < num_cols;
    const Int64 col = min(col0 + min(i, num_cols - 1), vocab(a) - 1);
    s.weight[i] = static_cast<const T*>(a.weight) + col * a.weight_pitch;
    const float bias =
        a.bias.data ? read_float(a.bias.data, col * a.bias.stride, a.bias.type) : 0.0f;
    s.bias[i] = real || !ends_by_bias(a) ? bias : -infinity();
  }
  __syncthreads();
}

// Sets what lies beyond the columns.
RLK_DEVICE void set_tail(LogitsLoop& tile, const LogitsShared& s, float value) {
  const int left = s.num_cols;
  if (left >= kLogpLeaf) return;
#pragma unroll
  for (int j = 0; j < LogitsLoop::kPairsOfThread; ++j) {
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      const bool beyond = tile.col(j) + e >= left;
#pragma unroll
      for (int i = 0; i < LogitsLoop::kRowsOfThread; ++i) {
        tile.at(i, j, e) = beyond ? value : tile.at(i, j, e);
      }
    }
  }
}

// The first step of logits, for every column.
RLK_DEVICE void add_bias(LogitsLoop& tile, const Args& a, const LogitsShared& s) {
#pragma unroll
  for (int j = 0; j < LogitsLoop::kPairsOfThread; ++j) {
    const float2 bias = *reinterpret_cast<const float2*>(&s.bias[tile.col(j)]);
#pragma unroll
    for (int i = 0; i < LogitsLoop::kRowsOfThread; ++i) {
      tile.at(i, j, 0) = start_logit(a, tile.at(i, j, 0), bias.x);
      tile.at(i, j, 1) = start_logit(a, tile.at(i, j, 1), bias.y);
    }
  }
}
template <bool kCap>
RLK_DEVICE void finish_logits(LogitsLoop& tile, const Args& a, const LogitsShared& s) {
#pragma unroll
  for (int i = 0; i < LogitsLoop::kRowsOfThread; ++i) {
    const float scale = s.scale[tile.row(i)];
#pragma unroll
    for (int j = 0; j < LogitsLoop::kPairsOfThread; ++j) {
      float slope;
      tile.at(i, j, 0) = finish_logit<kCap>(a, tile.at(i, j, 0), scale, slope);
      tile.at(i, j, 1) = finish_logit<kCap>(a, tile.at(i, j, 1), scale, slope);
    }
  }
}
// Turns dot products into logits.
RLK_DEVICE void make_logits(LogitsLoop& tile, const Args& a, const LogitsShared& s) {
  add_bias(tile, a, s);
  if (is_capped(a)) {
    finish_logits<true>(tile, a, s);
  } else {
    finish_logits<false>(tile, a, s);
  }
  if (!ends_by_bias(a)) set_tail(tile, s, -infinity());
}

}  // namespace rlk
