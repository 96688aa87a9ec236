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
