// SPDX-License-Identifier: Apache-2.0
// What CUDA kernels that take log-probs, and their host code, agree on beside the logits' source.
// Included by kernel.cuh files, which have no other headers than templates.
#pragma once

#include "common/cuda/copy.h"
#include "common/cuda/device_error.h"
#include "common/logp/leaves.h"
#include "common/logp/options.h"
#include "common/logp/shard.h"
#include "common/logp/stats.h"

namespace rlk {

// Columns of vocabulary that a partial covers: the same for every dtype and target.
constexpr int kLogpLeaf = 192;
constexpr long long logp_num_leaves(long long vocab) {
  return logp_leaves<kLogpLeaf>(vocab).count();
}

// Array of one value a row (or column of vocabulary); strides count elements and may be 0.
struct LogpCudaArray {
  const void* data;
  long long stride;
  int type;  // a TypeCode
};

// What dZ of a row is made of: p * -(all + log_p * log p), plus `target` in the target's column.
struct LogpCudaRowGrad {
  float target, all, log_p;
};

// Rows of a call are numbered 0 to num_rows. Workspace is 256-byte aligned.
struct LogpCudaRows : LogitOptions {
  // Kernels read vocab where kV is -1; it is equal to the constant elsewhere.
  long long vocab, num_rows;
  LogpShard shard;

  // The active rows, numbered anew, ascending. Made by the step rows (list_active_rows) where a
  // mask or ignore_index is given, null elsewhere and where each row is asked in its turn.
  long long* rows;        // [num_rows]; in a backward the others after them
  long long* num_active;  // [1]

  LogpCudaArray target;       // [num_rows] integers: ids of all ranks
  LogpCudaArray temperature;  // [num_rows] floats or null: inverse_temperature for all
  float inverse_temperature;
  LogpCudaArray mask;  // [num_rows] or null
  int has_ignore_index;
  long long ignore_index;

  float* logp;         // [num_rows]
  float* row_max;      // [num_rows]; null in a forward without backward
  float* row_log_sum;  // [num_rows]; likewise
  float* entropy;      // [num_rows]; forward: or null; backward: read with grad_entropy
  float* lse;          // [num_rows]; forward: or null
  LogitStats stats;    // forward
  DeviceError* error;
  const char* op;  // for `error`

  LogpCudaArray grad, grad_entropy, grad_lse;  // [num_rows] upstream gradients, or null

  constexpr LogpLeaves<kLogpLeaf> leaves() const { return {vocab, shard.segment}; }
};

}  // namespace rlk
