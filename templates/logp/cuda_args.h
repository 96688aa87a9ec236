// SPDX-License-Identifier: Apache-2.0
// What the CUDA kernels of logp and their host code agree on. Included by kernel.cuh, which has no
// other headers than templates, so this file includes no more.
#pragma once

#include "common/logp/cuda_args.h"

namespace rlk {

constexpr int kLogpThreads = 256;

// A row whose leaves are no more, and that one block reads, has its partials in shared memory.
constexpr long long kLogpMostSharedLeaves = 4096;

constexpr int logp_partial_bytes(long long leaves, bool entropy, bool stats = false) {
  const long long most = leaves < kLogpMostSharedLeaves ? leaves : kLogpMostSharedLeaves;
  return static_cast<int>(most * (8 + (entropy ? 4 : 0) + (stats ? 12 : 0)));
}

// A matrix [rows of the call, vocab] of type kX as it lies; strides count elements.
struct LogpCudaMatrix {
  void* data;
  long long col_stride;
  int num_axes;  // leading axes; sizes[i] and strides[i], outermost first
  long long sizes[kCudaCopyAxes], strides[kCudaCopyAxes];
};

// Arguments of every entry but pack. A row is cut into num_parts parts of part_leaves leaves, a
// block each.
struct LogpCudaArgs : LogpCudaRows {
  LogpCudaMatrix logits;
  LogpCudaMatrix grad_logits;  // backward; may be logits
  long long part_leaves, num_parts;
  const float* unless_one;  // backward: where it is 1 nothing is done; or null
  // Forward: [num_rows][leaves], or null: shared memory, with one part.
  float *partial_max, *partial_sum;
  float* partial_moment;             // with entropy alone
  LogitStatsPartials partial_stats;  // with statistics alone
};

}  // namespace rlk
