// SPDX-License-Identifier: Apache-2.0
// Runs the steps of a CPU kernel of logp over the pool. Strips of rows and parts of a row show
// nowhere in the results.
#include "templates/common/cpu_steps.hpp"
#include "templates/common/logp/host.hpp"
#include "templates/logp/cpu_args.h"
#include "templates/logp/op.hpp"

#include <algorithm>
#include <cstring>

namespace rlk {
namespace {

using templates::AlignedArray;
using templates::run_items;

constexpr Int64 k_partial_floats = 1 << 20;
constexpr Int64 k_part_leaves = 64;
constexpr Int64 k_most_lanes = 16;
constexpr Int64 k_logit_cost = 2;  // against a multiplication

LogpCpuMatrix matrix(const Tensor& tensor, const std::vector<Int64>& offsets, Int64 row_stride) {
  return {tensor.data, data_or_null(offsets), row_stride, tensor.strides[tensor.rank - 1]};
}

LogpCpuArgs arguments(const LogpCall& call, const ActiveRows& active, Int64 vocab) {
  LogpCpuArgs args{};
  args.vocab = vocab;
  args.logits = matrix(call.logits, active.offsets, active.row_stride);
  set_rows(args, call, active);
  if (call.pass == jit::Pass::bwd) {
    // A gradient of its own is dense.
    args.grad_logits = call.in_place ? args.logits : matrix(call.grad_logits, {}, vocab);
  }
  return args;
}

// Gradient 0, of the rows between the active ones.
void fill_inactive_gradients(const LogpCall& call, const ActiveRows& active) {
  const Tensor& grad = call.grad_logits;
  const auto leading = static_cast<std::size_t>(grad.rank - 1);
  const Int64 vocab = grad.shape[grad.rank - 1], step = grad.strides[grad.rank - 1];
  const std::size_t bytes = size_bytes(grad.dtype);
  Int64 row = 0;
  std::size_t next = 0;
  for_each_offset(grad.dims().first(leading), grad.steps().first(leading), [&](Int64 offset) {
    const bool is_active = next < active.rows.size() && active.rows[next] == row;
    ++row;
    if (is_active) {
      ++next;
      return;
    }
    auto* const to = static_cast<std::byte*>(grad.data) + offset * static_cast<Int64>(bytes);
    if (step == 1) {
      std::memset(to, 0, static_cast<std::size_t>(vocab) * bytes);
      return;
    }
    for (Int64 v = 0; v < vocab; ++v)
      std::memset(to + v * step * static_cast<Int64>(bytes), 0, bytes);
  });
}

void run(const LoadedKernel& kernel, int entry, const LogpCpuArgs& args, Int64 items, Int64 cost) {
  const auto step = reinterpret_cast<LogpCpuStep>(kernel.entries[static_cast<std::size_t>(entry)]);
  run_items(items, std::max<Int64>(cost, 1),
            [&](std::int64_t begin, std::int64_t end) { step(&args, begin, end); });
}

}  // namespace

void launch_logp_cpu(const LoadedKernel& kernel, const LogpCall& call) {
  if (call.unless_one.present() && *static_cast<const float*>(call.unless_one.data) == 1.0f) return;
  const Int64 vocab = call.vocab();
  const ActiveRows active = active_rows(call, call.logits, vocab);
  LogpCpuArgs args = arguments(call, active, vocab);
  const bool all_active = active.num_active == active.num_rows;
  const Int64 leaves = LogpLeaves<kLogpCpuLeaf>{vocab, args.shard.segment}.count();
  args.leaves_per_part = std::min(leaves, k_part_leaves);
  args.num_parts = ceil_div(leaves, args.leaves_per_part);
  const Int64 cost = std::min(vocab, args.leaves_per_part * kLogpCpuLeaf) * k_logit_cost;
  if (call.pass == jit::Pass::bwd) {
    if (!all_active) fill_inactive_gradients(call, active);
    args.num_rows = active.num_active;
    run(kernel, 0, args, args.num_rows * args.num_parts, cost);
    return;
  }
  if (!all_active) zero_results(call);
  const Int64 lanes = vector_lanes(kernel.target);
  if (call.parts.present()) {
    args.num_rows = active.num_active;
    run(kernel, 2, args, ceil_div(args.num_rows, lanes), args.shard.num_parts * lanes * 8);
    return;
  }
  const bool entropy = args.entropy != nullptr, stats = args.stats.argmax != nullptr;
  const Int64 num_partials = 2 + (entropy ? 1 : 0) + (stats ? 3 : 0);
  const Int64 most = k_partial_floats / (leaves * num_partials) / k_most_lanes * k_most_lanes;
  const Int64 strip = std::min(std::max(most, k_most_lanes),
                               ceil_div(active.num_active, k_most_lanes) * k_most_lanes);
  const AlignedArray<float> partials(strip * (leaves * num_partials + 1));
  args.lane_target_logit = partials.get();
  set_partials(args, partials.get() + strip, leaves * strip, entropy, stats);
  args.padded_rows = strip;
  for (Int64 first = 0; first < active.num_active; first += strip) {
    args.first_row = first;
    args.num_rows = std::min(strip, active.num_active - first);
    run(kernel, 0, args, args.num_rows * args.num_parts, cost);
    run(kernel, 1, args, ceil_div(args.num_rows, lanes), leaves * lanes * 4);
  }
}

}  // namespace rlk
