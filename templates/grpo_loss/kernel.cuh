// SPDX-License-Identifier: Apache-2.0
// The gradient of a policy loss's logits on CUDA in one look at a row: what logp, ppo_loss and
// logp's backward give one after the other, bit for bit.
//
//   log_prob   logp/kernel.cuh
//   upstream   d loss / d log_prob of the row's token, common/loss/token.h
//   dlogits    upstream * d log_prob / d logits
//
// Rendered before this text:
//   as in logp/kernel.cuh, but for kEntropy and kStats
// Macro: RLK_BACKWARD, 1: there is no other pass.
//
// Steps in launch order, each one argument by value: CudaCopy for pack, GrpoLossCudaArgs for
// main. Results follow no grid.
//                            grid                           if
//   rlk_grpo_loss_bwd_pack   any x 256                      a row array needs a copy
//   rlk_grpo_loss_bwd_main   any x 96 to kGrpoThreads, with grpo_fixed_bytes() and num_kept leaves
//                            of dynamic shared memory
//
// A block keeps what fits of its row in shared memory between the row's two looks, and reads the
// rest again. While the row is merged, L2 is asked for the next one.
#include "grpo_loss/cuda_args.h"
constexpr long long kEntropy = 0, kStats = 0;
// The loss's own: one thread a row asks for them, so none is worth a kernel of its own.
// A token's derivative follows from the token and what its sequence has beforehand: no other ratio,
// mean or given weight comes here.
constexpr long long kPolicy = -1, kDualClip = -1, kCorrection = -1, kLevel = -1, kKl = -1;
constexpr long long kRatio = 0, kMeanAdvantage = 0, kLeaves = 0;
constexpr long long kKlGradient = -1, kKlWeight = -1;
#include "logp/fold.cuh"
#include "logp/gradients.cuh"
#include "ppo_loss/tokens.cuh"

namespace rlk {

using GrpoArgs = GrpoLossCudaArgs;

extern __shared__ uint4 shared_memory[];

// What a thread has under way. Registers are short where a cap may be, and with one where leaves
// begin between fours of columns.
constexpr bool kHasOddLeaves = kV >= 0 && logp_segment(kV) % 4 != 0;
constexpr int kFoldAtOnce = kIsCapRunTime || (kMayBeCapped && kHasOddLeaves) ? 1 : kLeavesAtOnce;
constexpr int kGradientsAtOnce = kIsCapRunTime ? 1 : 2;
// Of the next row, while memory has nothing else to do.
constexpr Int64 kPrefetchBytes = 64 << 10;

RLK_DEVICE int num_leaves(const GrpoArgs& a) { return leaves_of(a).count(); }

RLK_DEVICE TokenInput& shared_token() {
  static_assert(sizeof(TokenInput) <= kGrpoTokenBytes);
  return *reinterpret_cast<TokenInput*>(shared_memory);
}

RLK_DEVICE Partials shared_partials(const GrpoArgs& a) {
  float* const max = reinterpret_cast<float*>(shared_memory + kGrpoTokenBytes / 16);
  return {max, max + num_leaves(a), nullptr};
}

// Where the leaves of a row are kept.
struct KeptRow {
  const T* from;
  unsigned at;     // shared address of the first column
  int num_leaves;  // that are kept: none where four columns are not one aligned access
};

RLK_DEVICE KeptRow kept_row(const GrpoArgs& a, Int64 row) {
  const T* const from = row_of(a.logits, row);
  // As the row lies in memory, so that what is aligned there is so here.
  const auto offset = static_cast<unsigned>(grpo_fixed_bytes(num_leaves(a)) - 16) +
                      static_cast<unsigned>(address(from) % 16);
  return {from, shared_address(shared_memory) + offset,
          leaf_row(a, from).all_quads ? static_cast<int>(a.num_kept) : 0};
}

template <bool kCap>
RLK_DEVICE void fold_row(const GrpoArgs& a, Int64 row) {
  const KeptRow kept = kept_row(a, row);
  const LeafRow logits = leaf_row(a, kept.from);
  const unsigned lane = kept.at + 4 * sizeof(T) * logits.lane;
  const auto keep = [&](int leaf, const LogpLeaf& cols, const Quad(&q)[kGroups]) {
    if (leaf >= kept.num_leaves) return;
    const unsigned at = lane + static_cast<unsigned>(cols.begin) * sizeof(T);
#pragma unroll
    for (int g = 0; g < kGroups; ++g) {
      if (64 * g + 4 * logits.lane < cols.cols) st_shared(at + 64 * g * int{sizeof(T)}, q[g].words);
    }
  };
  fold_leaves<kCap, kFoldAtOnce>(a, logits, scale_of(a, row), 0, num_leaves(a), shared_partials(a),
                                 keep);
}

// All of a row's token but its log-prob.
RLK_DEVICE TokenInput token_of(const PpoLossArgs& a, Int64 token) {
  const LossChoices c = choices(a);
  TokenInput in{};
  in.active = true;
  enter_sequence(a, c, sequence_of(a, token), in);
  read_token(a, c, token, in);
  return in;
}

// By the warps from the third on.
RLK_DEVICE void prefetch_row(const GrpoArgs& a, Int64 row) {
  if (row >= a.num_rows || a.logits.col_stride != 1 || !is_active(a, row, target_of(a, row)))
    return;
  const auto from = reinterpret_cast<const char*>(row_of(a.logits, row));
  const Int64 bytes = min<Int64>(vocab(a) * sizeof(T), kPrefetchBytes);
#pragma unroll 1
  for (Int64 at = 128 * (threadIdx.x - 64); at < bytes; at += 128 * (blockDim.x - 64)) {
    prefetch_l2(from + at);
  }
}

template <bool kCap>
RLK_DEVICE void write_row_gradients(const GrpoArgs& a, Int64 row) {
  const KeptRow kept = kept_row(a, row);
  T* const to = row_of(a.grad_logits, row);
  const GradientRow values = gradient_row(a, row, target_of(a, row));
  // What is read again begins with a line of memory where rows do.
  const Int64 middle =
      kept.num_leaves < num_leaves(a) ? leaves_of(a).at(kept.num_leaves).begin & ~63 : vocab(a);
  write_gradients<kCap, kGradientsAtOnce>(
      a, values, kept.from, to, middle, vocab(a),
      [&](unsigned(&words)[4], Int64 col) { ld_stream(words, kept.from + col); });
  write_gradients<kCap, 1>(
      a, values, kept.from, to, 0, middle, [&](unsigned(&words)[4], Int64 col) {
        ld_shared(words, kept.at + static_cast<unsigned>(col) * int{sizeof(T)});
      });
}

RLK_DEVICE void look_at_active_row(const GrpoArgs& a, Int64 row) {
  if (is_capped(a)) {
    fold_row<true>(a, opaque(row));
  } else {
    fold_row<false>(a, opaque(row));
  }
  __syncthreads();
  const int thread = threadIdx.x;
  if (thread >= 64) prefetch_row(a, row + a.num_resident);
  join_segments(a, shared_partials(a));
  __syncthreads();
  if (thread < 32) {
    merge_row(a, row, target_of(a, row), shared_partials(a));
  } else if (thread == 32) {
    shared_token() = token_of(a.loss, row);
  }
  __syncthreads();
  if (thread == 0) {
    TokenInput in = shared_token();
    in.log_prob = a.logp[row];
    a.loss.grad[row] = token_loss(choices(a.loss), a.loss.values, in).grad;
  }
  __syncthreads();
  if (is_capped(a)) {
    write_row_gradients<true>(a, opaque(row));
  } else {
    write_row_gradients<false>(a, opaque(row));
  }
  __syncthreads();
}

extern "C" __global__ void __launch_bounds__(256)
    rlk_grpo_loss_bwd_pack(const __grid_constant__ CudaCopy copy) {
  pack(copy);
}

extern "C" __global__ void __launch_bounds__(kGrpoThreads, 1)
    rlk_grpo_loss_bwd_main(const __grid_constant__ GrpoArgs a) {
#pragma unroll 1
  for (Int64 row = blockIdx.x; row < a.num_rows; row += gridDim.x) {
    if (!is_active(a, row, target_of(a, row))) {
      if (threadIdx.x == 0) write_neutral(a, row);
      write_zeros(a, row_of(a.grad_logits, row), 0, vocab(a));
    } else {
      look_at_active_row(a, row);
    }
  }
}

}  // namespace rlk
