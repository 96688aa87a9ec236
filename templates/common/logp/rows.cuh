// SPDX-License-Identifier: Apache-2.0
// Rows of a call on the device: which are active, and the values that each one has.
#pragma once

#include "common/cuda/copy.cuh"
#include "common/cuda/element.cuh"
#include "common/cuda/math.cuh"
#include "common/logp/cuda_args.h"

namespace rlk {

RLK_DEVICE Int64 vocab(const LogpCudaRows& a) { return kV >= 0 ? kV : a.vocab; }
// Constant of the templates kSegment: columns of a segment, or -1: of a vocabulary of its own where
// kV is given, else run-time. Which it is, or -1:
constexpr int kSegmentCols = kSegment > 0 ? static_cast<int>(kSegment)
                             : kV >= 0    ? logp_segment(kV)
                                          : -1;
RLK_DEVICE LogpLeaves<kLogpLeaf> leaves_of(const LogpCudaRows& a) {
  return {vocab(a), kSegmentCols >= 0 ? kSegmentCols : a.shard.segment};
}
// Constant of the templates kStats: 1: statistics of the logits are asked for; 0: they are not; -1:
// run-time, where arrays are given. The same in all threads of a launch.
constexpr bool kMayHaveStats = kStats != 0;
RLK_DEVICE bool has_stats(const LogpCudaRows& a) {
  return kStats >= 0 ? kMayHaveStats : a.stats.argmax != nullptr;
}

RLK_DEVICE Int64 num_active(const LogpCudaRows& a) {
  return a.num_active ? *a.num_active : a.num_rows;
}

// Row of the call that active row i is.
RLK_DEVICE Int64 call_row(const LogpCudaRows& a, Int64 i) { return a.rows ? a.rows[i] : i; }

RLK_DEVICE Int64 target_of(const LogpCudaRows& a, Int64 row) {
  return read_integer(a.target.data, row * a.target.stride, a.target.type);
}

// Of a target: its column, and whether it is one of these, or of any rank's.
RLK_DEVICE Int64 column_of(const LogpCudaRows& a, Int64 id) { return id - a.shard.begin; }
RLK_DEVICE bool has_column(const LogpCudaRows& a, Int64 id) {
  return id >= a.shard.begin && id - a.shard.begin < vocab(a);
}
RLK_DEVICE bool is_id(const LogpCudaRows& a, Int64 id) { return id >= 0 && id < a.shard.num_ids; }

// Inverse temperature: NaN where the temperature is no finite number above 0.
RLK_DEVICE float scale_of(const LogpCudaRows& a, Int64 row) {
  if (!a.temperature.data) return a.inverse_temperature;
  const float t = read_float(a.temperature.data, row * a.temperature.stride, a.temperature.type);
  return t > 0.0f && t < infinity() ? rcp_rn(t) : nan();
}

RLK_DEVICE bool is_active(const LogpCudaRows& a, Int64 row, Int64 target) {
  if (a.has_ignore_index && target == a.ignore_index) return false;
  return !a.mask.data || read_mask(a.mask.data, row * a.mask.stride, a.mask.type);
}

// What a row that is not active gets in the forward.
RLK_DEVICE void write_neutral(const LogpCudaRows& a, Int64 row) {
  a.logp[row] = 0.0f;
  if (a.entropy) a.entropy[row] = 0.0f;
  if (a.lse) a.lse[row] = 0.0f;
  if (a.row_max) a.row_max[row] = a.row_log_sum[row] = 0.0f;
  if (!has_stats(a) || a.shard.gives_part) return;  // nobody reads a part of such a row
  a.stats.max_logit[row] = a.stats.mean_logit[row] = a.stats.sum_p2[row] = 0.0f;
  a.stats.argmax[row] = -1;
}

// 0 where there is none.
RLK_DEVICE float upstream(const LogpCudaArray& grad, Int64 row) {
  return grad.data ? read_float(grad.data, row * grad.stride, grad.type) : 0.0f;
}
// A row without is not active in a backward.
RLK_DEVICE bool has_upstream(const LogpCudaRows& a, Int64 row) {
  return upstream(a.grad, row) != 0.0f || upstream(a.grad_entropy, row) != 0.0f ||
         upstream(a.grad_lse, row) != 0.0f;
}

// Lists the active rows, ascending, in one block of 1024 threads. Gives the others, in the forward,
// their neutral values, else lists them after the active ones, descending. Four rows a thread at
// once, so that their loads overlap.
RLK_DEVICE void list_active_rows(const LogpCudaRows& a, bool forward) {
  constexpr int kParts = 4;
  __shared__ int count[kParts][32];  // active rows of a warp, then of those before it in the part
  __shared__ int part_count[kParts];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const unsigned before = (1u << lane) - 1;
  Int64 num_listed = 0;
#pragma unroll 1
  for (Int64 first = 0; first < a.num_rows; first += kParts * 1024) {
    bool active[kParts];
    unsigned votes[kParts];
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
      const Int64 row = first + part * 1024 + threadIdx.x;
      active[part] = row < a.num_rows && is_active(a, row, target_of(a, row)) &&
                     (forward || has_upstream(a, row));
    }
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
      votes[part] = __ballot_sync(kFullWarp, active[part]);
      if (lane == 0) count[part][warp] = __popc(votes[part]);
    }
    __syncthreads();
    if (warp < kParts) {
      const int own = count[warp][lane];
      int sum = own;
#pragma unroll
      for (int lanes = 1; lanes < 32; lanes *= 2) {
        const int other = __shfl_up_sync(kFullWarp, sum, lanes);
        sum += lane >= lanes ? other : 0;
      }
      count[warp][lane] = sum - own;
      if (lane == 31) part_count[warp] = sum;
    }
    __syncthreads();
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
      const Int64 row = first + part * 1024 + threadIdx.x;
      const Int64 place = num_listed + count[part][warp] + __popc(votes[part] & before);
      if (active[part]) {
        a.rows[place] = row;
      } else if (row < a.num_rows) {
        if (forward) {
          write_neutral(a, row);
        } else {
          a.rows[a.num_rows - 1 - (row - place)] = row;
        }
      }
      num_listed += part_count[part];
    }
    __syncthreads();
  }
  if (threadIdx.x == 0) *a.num_active = num_listed;
}

}  // namespace rlk
