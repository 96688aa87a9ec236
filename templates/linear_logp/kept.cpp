// SPDX-License-Identifier: Apache-2.0
// The exponentials that a forward keeps for its backward: of how many segments, and where they lie.
#include "templates/common/cuda_memory.hpp"
#include "templates/common/logp/leaves.h"
#include "templates/linear_logp/cuda_args.h"
#include "templates/linear_logp/op.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>

namespace rlk {
namespace {

LogpLeaves<kLogpLeaf> leaves_of(const LinearLogpCall& call) {
  return {call.weight.shape[0], segment_of(call, call.weight.shape[0])};
}

}  // namespace

// The CPU's kernels compute with fp32 alone.
DType linear_logp_kept_dtype(const LinearLogpCall& call) {
  return call.device.kind == Device::Kind::cpu ? DType::f32 : call.hidden.dtype;
}

bool linear_logp_keeps(const LinearLogpCall& call, Target target) {
  return backend(target) == Backend::cpu ||
         linear_logp_uses_sm90_loop(type_code(call.hidden.dtype), target);
}

std::int64_t linear_logp_kept_step(const LinearLogpCall& call) {
  if (call.device.kind == Device::Kind::cuda) return linear_logp_kept(leaves_of(call), 1).step;
  return round_up(std::int64_t{leaves_of(call).segment()}, 64);
}

std::int64_t linear_logp_kept_segments(const LinearLogpCall& call) {
  if (!call.kept.present()) return 0;
  return call.kept.shape[1] / linear_logp_kept_step(call);
}

std::array<KeptLimit, 2> linear_logp_kept_limits(const LinearLogpCall& call, std::int64_t mib) {
  const auto element_bytes = static_cast<std::int64_t>(size_bytes(linear_logp_kept_dtype(call)));
  // Where padding is more than an eighth it counts.
  const std::int64_t own = leaves_of(call).segment(), step = linear_logp_kept_step(call);
  const std::int64_t columns = step > own + own / 8 ? step : own;
  const std::int64_t held = (mib << 20) / (columns * element_bytes);  // segments of one row
  const std::int64_t all = ceil_div(call.weight.shape[0], own);
  const auto half = static_cast<std::int64_t>(std::bit_ceil(static_cast<std::uint64_t>(all)) / 2);
  const auto limit = [&](std::int64_t segments) {
    return KeptLimit{segments > 0 ? held / segments : 0, segments * step};
  };
  return {limit(all), limit(half)};
}

Tensor linear_logp_kept_tensor(const LinearLogpCall& call, std::int64_t saved_mib) {
  const std::int64_t rows = call.target.num_elements();
  if (call.softcap || call.entropy_grad || rows == 0) return {};
  for (const auto& limit : linear_logp_kept_limits(call, call.saved_mib.value_or(saved_mib))) {
    if (rows > limit.rows) continue;
    const std::array shape{rows, limit.columns};
    return dense_tensor(nullptr, linear_logp_kept_dtype(call), call.device, shape);
  }
  return {};
}

}  // namespace rlk
