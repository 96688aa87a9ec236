// SPDX-License-Identifier: Apache-2.0
// Where the columns of a backward's wave lie; see LinearLogpWave.
#pragma once

#include "common/logp/formula.cuh"
#include "linear_logp/cuda_args.h"

namespace rlk {

using Args = LinearLogpCudaArgs;

// Columns of the vocabulary that the wave has of its segment `s`, maybe none.
struct WaveSegment {
  Int64 begin;
  int cols;
};
RLK_DEVICE WaveSegment wave_segment(const Args& a, int s) {
  const LinearLogpWave& wave = a.wave;
  const Int64 size = leaves_of(a).segment(), first = (wave.first_segment + s) * size;
  const Int64 begin = first + wave.first_leaf * kLogpLeaf;
  const Int64 end = min(min(first + size, vocab(a)), begin + Int64{wave.num_leaves} * kLogpLeaf);
  return {begin, end > begin ? static_cast<int>(end - begin) : 0};
}

// Leaf `i` of the wave, counted through its segments, and the column of dZ where it begins.
RLK_DEVICE LogpLeaf leaf_of_wave(const Args& a, int i) {
  const LinearLogpWave& wave = a.wave;
  const int s = i / wave.num_leaves;
  const LogpLeaves<kLogpLeaf> leaves = leaves_of(a);
  return leaves.at(Int64{wave.first_segment + s} * leaves.of_segment() + wave.first_leaf +
                   (i - s * wave.num_leaves));
}
RLK_DEVICE int column_of_leaf(const Args& a, int i) {
  const int s = i / a.wave.num_leaves;
  return s * a.wave.step + (i - s * a.wave.num_leaves) * kLogpLeaf;
}
// How many columns of dZ it has: its own, and in the last one of a segment what is filled with 0.
RLK_DEVICE int width_of_leaf(const Args& a, int i) {
  return min(kLogpLeaf, a.wave.width - i % a.wave.num_leaves * kLogpLeaf);
}

// Hidden rows for the product over rows: active ones side by side.
struct PackedRows {
  const void* data;
  Int64 pitch;
};
RLK_DEVICE PackedRows packed_hidden(const Args& a) {
  if (a.hidden_shifted) return {a.hidden_shifted, a.hidden_shifted_pitch};
  if (a.gathered && num_active(a) < a.num_rows) return {a.gathered, a.gathered_pitch};
  return {a.hidden, a.hidden_pitch};
}

// Whether dZ is made of exponentials about each leaf's maximum, rounded to the storage type. A
// softcap's slope and the entropy's gradient take the logits themselves.
constexpr bool kMayTakeLogits = kMayBeCapped || kMayHaveEntropy;
RLK_DEVICE bool is_made_of_exponentials(const Args& a) {
  return !has_cap_argument(a) && !(kMayHaveEntropy && a.grad_entropy.data);
}

// Tiles of products over segments, `tiles` of them a segment: which segment's the tile at `at` is,
// and which of them.
struct TileOfSegment {
  int segment, index;
};
RLK_DEVICE TileOfSegment tile_of_segment(Int64 at, int tiles) {
  const int segment = static_cast<int>(at) / tiles;
  return {segment, static_cast<int>(at) - segment * tiles};
}

}  // namespace rlk
