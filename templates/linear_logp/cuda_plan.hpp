// SPDX-License-Identifier: Apache-2.0
// The arguments of linear_logp's CUDA kernels, and where in the workspace each array lies.
#pragma once

#include "runtime/cuda/tensor_map.hpp"
#include "templates/common/logp/host.hpp"
#include "templates/linear_logp/cuda_args.h"
#include "templates/linear_logp/op.hpp"

#include <span>

namespace rlk {

struct CudaPlan {
  LinearLogpCudaArgs args{};
  int element_bytes = 0;  // of hidden and weight

  // Copies of values a row come before the step rows, which reads them; operands' come after.
  std::span<const CudaCopy> row_copies() const { return copies.all().first(num_row_copies); }
  std::span<const CudaCopy> operand_copies() const { return copies.all().subspan(num_row_copies); }

  // For the loop of sm_90a: hidden as it lies and its active rows side by side. What the sums over
  // rows read of a chunk begins carried_rows rows before, in dZ too.
  runtime::cuda::MatrixView hidden, gathered;
  Int64 carried_rows = 0;

  // Backward: waves, and their segments and leaves of a segment; the last of each may have fewer.
  int num_waves = 0, wave_segments = 0, wave_leaves = 0;

  LogpCudaCopies copies;  // values a row, then hidden, weight
  std::size_t num_row_copies = 0;
};

// The products of a call: rows of a tile of logits, or of a cluster's tiles, and whether they are
// made by the loop of sm_90a, which reads matrices by tensor maps and cannot gather.
struct CudaLoop {
  int rows = 0;
  bool is_sm90 = false, is_dynamic = false;
};

// Everything but error, op and what changes from launch to launch. `workspace_bytes` bounds the
// strip of a forward, and about the wave and the sums of a backward; copies of operands come on
// top.
CudaPlan plan_linear_logp_cuda(Arena& arena, const LinearLogpCall& call, const CudaLoop& loop,
                               Int64 workspace_bytes);

// Rows of tiles that a group has: what it reads of the hidden matrix stays in the L2 cache.
int linear_logp_group_tiles(int tile_rows, Int64 row_bytes);

}  // namespace rlk
