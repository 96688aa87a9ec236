// SPDX-License-Identifier: Apache-2.0
// What the CUDA kernel of grpo_loss and its host code agree on. Included by kernel.cuh, which has
// no other headers than templates.
#pragma once

#include "logp/cuda_args.h"
#include "ppo_loss/args.h"

namespace rlk {

constexpr int kGrpoThreads = 768;  // of the blocks that a multiprocessor has at once
constexpr int kGrpoTokenBytes = 64;

// A block's dynamic shared memory: what a token's loss is made of, the partials of a row's leaves,
// the leaves that it keeps, which begin where the row does within 16 bytes.
constexpr long long grpo_fixed_bytes(long long leaves) {
  return kGrpoTokenBytes + (logp_partial_bytes(leaves, false) + 15) / 16 * 16 + 16;
}

// num_parts is 1.
struct GrpoLossCudaArgs : LogpCudaArgs {
  // Read: the tokens' arrays but log_probs, the weights and the statistic of the sequences, choices
  // and values. grad is the kernel's own, and upstream of the rows.
  PpoLossArgs loss;
  long long num_kept;      // leaves
  long long num_resident;  // rows that the device has under way at once
};

}  // namespace rlk
