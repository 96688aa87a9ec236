// SPDX-License-Identifier: Apache-2.0
// What the CPU kernels of logp and their host code agree on. Included by kernel_cpu.cpp, which has
// no other headers than templates.
#pragma once

#include "../common/logp/cpu_types.h"

namespace rlk {

// A matrix [rows of the call, vocab] of type kX; strides and offsets count elements.
struct LogpCpuMatrix {
  void* data;
  const Int64* offsets;  // of each active row, or null: row of the call * row_stride
  Int64 row_stride, col_stride;
};

// Only active rows are listed; every array a row is one of them unless it is said to be indexed
// through `rows`. Partials and lane_target_logit start at first_row.
struct LogpCpuArgs : LogitOptions {
  Int64 vocab;  // read where kV is -1, else equal to it
  LogpShard shard;
  const Int64* rows;  // index of each active row in the call, or null: identity
  LogpCpuMatrix logits;
  const Int64* target;               // 0 <= target < vocab; -1: another rank has it
  const float* inverse_temperature;  // or null: 1

  // Upstream gradients (backward), each 0 where null.
  const float *grad, *grad_entropy, *grad_lse;

  // Outputs of the forward, inputs of the backward, indexed through rows; the forward leaves out
  // those that are null.
  float *logp, *row_max, *row_log_sum, *entropy, *lse;
  LogitStats stats;
  LogpCpuMatrix grad_logits;

  // The strip: active rows [first_row, first_row + num_rows). Workspace is 64-byte aligned.
  Int64 first_row, num_rows, padded_rows;  // padded to whole vectors
  Int64 num_parts;                         // of a row: items of a main step
  Int64 leaves_per_part;
  float *partial_max, *partial_sum;  // [leaves][padded_rows]
  float* partial_moment;             // with entropy alone
  LogitStatsPartials partial_stats;  // with statistics alone
  float* lane_target_logit;          // [padded_rows]
};

// Entry points: items [begin, end).
using LogpCpuStep = void (*)(const LogpCpuArgs* args, Int64 begin, Int64 end);

}  // namespace rlk
