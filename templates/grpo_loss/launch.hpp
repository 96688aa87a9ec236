// SPDX-License-Identifier: Apache-2.0
// Stages 2 and 10 of grpo_loss.
#pragma once

#include "jit/op.hpp"

namespace rlk {

void check_grpo_loss(const jit::OpCall& call);

// The partials of a row lie in a block's shared memory.
bool grpo_loss_takes(std::int64_t vocab);

// How a multiprocessor takes rows of a vocabulary: as many at once as it keeps whole, up to four.
struct GrpoLossRows {
  int blocks, threads, shared_bytes;
  std::int64_t num_kept;  // leaves of a row
};

// `most_shared` bytes are what a block may have.
GrpoLossRows grpo_loss_rows(std::int64_t vocab, int element_bytes, int most_shared);

// Most dynamic shared memory of a launch.
int grpo_loss_shared_bytes(const jit::Specialization& spec);

void launch_grpo_loss(const LoadedKernel& kernel, const jit::OpCall& call,
                      const jit::LaunchSettings& settings);

}  // namespace rlk
