// SPDX-License-Identifier: Apache-2.0
// Entry points of logp's forward; see kernel.cuh.
#pragma once

#include "logp/fold.cuh"

namespace rlk {

// Blocks of a multiprocessor that registers are left for.
constexpr int kBlocks = kIsCapRunTime ? 2 : kX == kFloat32 ? 4 - kMayHaveStats : 3 - kMayBeCapped;

extern __shared__ float shared_partials[];

RLK_DEVICE Partials partials_in_shared(const Args& a, int leaves) {
  const bool has_moment = kMayHaveEntropy && a.entropy != nullptr;
  Partials partials{shared_partials,
                    shared_partials + leaves,
                    has_moment ? shared_partials + 2 * leaves : nullptr,
                    {}};
  if (has_stats(a)) {
    float* const next = shared_partials + (has_moment ? 3 : 2) * leaves;
    partials.stats = {next, next + leaves, reinterpret_cast<int*>(next + 2 * leaves)};
  }
  return partials;
}

extern "C" __global__ void __launch_bounds__(256)
    rlk_logp_fwd_pack(const __grid_constant__ CudaCopy copy) {
  pack(copy);
}

extern "C" __global__ void __launch_bounds__(kLogpThreads, kBlocks)
    rlk_logp_fwd_main(const __grid_constant__ Args a) {
  const int leaves = leaves_of(a).count();
  const Int64 num_items = a.num_rows * a.num_parts;
#pragma unroll 1
  for (Int64 item = blockIdx.x; item < num_items; item += gridDim.x) {
    const Int64 row = a.num_parts == 1 ? item : item / a.num_parts;
    const auto begin = static_cast<int>((item - row * a.num_parts) * a.part_leaves);
    const Int64 target = target_of(a, row);
    if (!is_active(a, row, target)) {
      if (begin == 0 && threadIdx.x == 0) write_neutral(a, row);
      continue;
    }
    const bool is_shared = a.partial_max == nullptr;
    const Partials partials =
        is_shared ? partials_in_shared(a, leaves) : workspace_partials(a, row, leaves);
    const LeafRow logits = leaf_row(a, row_of(a.logits, row));
    const int end = min(begin + static_cast<int>(a.part_leaves), leaves);
    const float scale = scale_of(a, row);
    const auto keep_none = [](int, const LogpLeaf&, const Quad(&)[kGroups]) {};
    if (is_capped(a)) {
      fold_leaves<true, kLeavesAtOnce>(a, logits, scale, begin, end, partials, keep_none);
    } else {
      fold_leaves<false, kLeavesAtOnce>(a, logits, scale, begin, end, partials, keep_none);
    }
    if (!is_shared) continue;
    __syncthreads();
    join_segments(a, partials);
    __syncthreads();
    if (threadIdx.x < 32) merge_row(a, row, target, partials);
    __syncthreads();
  }
}

// Rows whose parts several blocks folded. Two blocks at once: left to itself the compiler aims at
// four and spills on sm_100.
extern "C" __global__ void __launch_bounds__(kLogpThreads, 2)
    rlk_logp_fwd_merge(const __grid_constant__ Args a) {
  const int leaves = leaves_of(a).count();
#pragma unroll 1
  for (Int64 row = blockIdx.x; row < a.num_rows; row += gridDim.x) {
    const Int64 target = target_of(a, row);
    if (!is_active(a, row, target)) continue;
    const Partials partials = workspace_partials(a, row, leaves);
    join_segments(a, partials);
    __syncthreads();
    if (threadIdx.x < 32) merge_row(a, row, target, partials);
  }
}

extern "C" __global__ void __launch_bounds__(256)
    rlk_logp_fwd_join(const __grid_constant__ Args a) {
  join_parts(a);
}

}  // namespace rlk
