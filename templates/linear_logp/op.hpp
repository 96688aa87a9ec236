// SPDX-License-Identifier: Apache-2.0
// linear_logp: log-probabilities of target ids straight from hidden states. Its call, and the
// stages that its files make.
#pragma once

#include "templates/common/logp/call.hpp"

#include <array>
#include <cstdint>
#include <optional>
#include <span>

namespace rlk {

// A backward over some rows of a longer call, as one of several that follow each other: it goes on
// with the sums of the chunks before, so that the last one has the bits of a backward over all rows
// at once. Every chunk but the last has a multiple of kLinearLogpChunkRows rows. On sm_90a the rows
// that fill no whole step of the sum's instructions wait here for the next chunk.
struct LinearLogpChunk {
  // As linear_logp_chunk_memory shapes them, for as many rows or more; weight_sums and bias_sums
  // where the gradient is asked for.
  Tensor hidden;       // sm_90a: active rows side by side, after those that wait
  Tensor state;        // int64 [2]
  Tensor weight_sums;  // float32 [V, D]; not read where the chunk is the first
  Tensor bias_sums;    // float32; likewise
  bool is_first = true, is_last = true;
};

// Shapes: hidden [..., D], weight [V, D], target [...], bias [V]; values per row: [...].
struct LinearLogpCall : LogpCallBase {
  Tensor hidden, weight;    // float32, bfloat16 or float16, the same
  Tensor bias;              // optional; hidden's dtype or float32
  std::optional<int> tile;  // CUDA: in place of the one that is chosen; an index of tile_names

  // MiB that `kept` may take; none: the setting's, else a rule.
  std::optional<std::int64_t> saved_mib;
  bool entropy_grad = false;  // the entropy will have a gradient: nothing is kept
  // Forward: written where present, exp(z - leaf maximum) of the first segments as kept.cpp shapes
  // it. Backward: read in place of their products; never with softcap or grad_entropy.
  Tensor kept;
  // Backward: dZ may be written over `kept`, which nobody reads after the call.
  bool may_overwrite_kept = false;

  Tensor accumulate_into;  // optional; float32 [V, D], what grad_weight is to be

  // Backward: gradients that are absent are not computed. Those of hidden and weight have their
  // dtype, or are float32: the sums as they are.
  Tensor grad_hidden, grad_weight, grad_bias;
  // grad_weight is float32 and its values stay: each gets one fp32 sum over the call's rows added.
  bool accumulates = false;
  Tensor unless_one;  // backward: optional, one float32; where it is 1 nothing is done

  // Backward: the call's rows are a chunk of more, or null. `kept` has all segments and may be
  // written over; grad_weight is weight_sums but in the last chunk, which alone has grad_bias.
  const LinearLogpChunk* chunk = nullptr;
};

// Segments of the vocabulary (leaves.h) whose exponentials `kept` has: 0 where it is absent.
std::int64_t linear_logp_kept_segments(const LinearLogpCall& call);

// Elements from one segment's first to the next one's in a row of `kept`.
std::int64_t linear_logp_kept_step(const LinearLogpCall& call);

DType linear_logp_kept_dtype(const LinearLogpCall& call);

// Up to so many rows have so many columns of `kept`.
struct KeptLimit {
  std::int64_t rows, columns;
};

// What a budget keeps of a call's vocabulary and dtype, the first limit that holds: all, or half,
// as less would make a call of forward and backward faster by less than 5 %. The budget counts what
// a segment's columns take.
std::array<KeptLimit, 2> linear_logp_kept_limits(const LinearLogpCall& call, std::int64_t mib);

// `kept` of the forward of a call that will be differentiated in hidden or weight, without memory;
// absent where nothing is kept. `saved_mib`: where the call says none.
Tensor linear_logp_kept_tensor(const LinearLogpCall& call, std::int64_t saved_mib);

// Whether the kernels of the call's target keep exponentials.
bool linear_logp_keeps(const LinearLogpCall& call, Target target);

constexpr std::int64_t kLinearLogpChunkRows = 128;

// What chunks of at most `rows` rows share, without memory: `kept` as a whole, of which a chunk's
// exponentials are the rows from first_kept_row on, and the tensors of LinearLogpChunk.
struct LinearLogpChunkMemory {
  Tensor kept;
  std::int64_t first_kept_row = 0;
  LinearLogpChunk chunk;
};
// Absent where the call cannot be taken by chunks: options that keep no exponentials, shards, and
// kernels that keep none or whose sums follow all rows (fp16 on sm_90a).
std::optional<LinearLogpChunkMemory> linear_logp_chunk_memory(const LinearLogpCall& call,
                                                              Target target, std::int64_t rows);

// The same of the call's own rows in the memory `kept`, for a forward or a backward of a chunk;
// with `chunk`, which is checked too, that of a backward. Throws InvalidArgument, Unsupported.
Tensor linear_logp_kept_of_chunk(const LinearLogpCall& call, Target target, const Tensor& kept,
                                 const LinearLogpChunk* chunk = nullptr);

// Indices of constants among the op's.
extern const std::size_t k_linear_logp_tile, k_linear_logp_softcap, k_linear_logp_entropy,
    k_linear_logp_keep;

void check_linear_logp(const jit::OpCall& call);

void launch_linear_logp(const LoadedKernel& kernel, const jit::OpCall& call,
                        const jit::LaunchSettings& settings);

std::span<const char* const> linear_logp_cuda_entries(jit::Pass pass);

// Whether the products take the loop of sm_90a; x: type code of hidden and weight.
bool linear_logp_uses_sm90_loop(int x, Target target);

// Most dynamic shared memory of a step; tile: value of kTile; keeps: exponentials may be kept.
int linear_logp_cuda_shared_bytes(int x, Target target, jit::Pass pass, int tile, bool keeps);

// Queues the call on its stream. Throws InvalidArgument for an id that an earlier call of this
// device found out of range, or with validate_sync this one; DriverError.
void launch_linear_logp_cuda(const LoadedKernel& kernel, const LinearLogpCall& call,
                             const jit::LaunchSettings& settings);

namespace templates {
extern const jit::Op linear_logp_op;
}

}  // namespace rlk
