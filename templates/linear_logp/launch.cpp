// SPDX-License-Identifier: Apache-2.0
// Compacts the rows, fills the operands and runs the steps; inactive rows get their neutral value.
#include "runtime/error.hpp"
#include "templates/common/logp/host.hpp"
#include "templates/linear_logp/launch_cpu.hpp"
#include "templates/linear_logp/op.hpp"

#include <cstring>

namespace rlk {
namespace {

LinearLogpCpuOperands operands_of(const LinearLogpCall& call, const ActiveRows& active) {
  LinearLogpCpuOperands operands{};
  operands.vocab = call.weight.shape[0];
  operands.dim = call.weight.shape[1];
  operands.all_rows = active.num_active;
  operands.hidden = call.hidden.data;
  operands.hidden_offsets = data_or_null(active.offsets);
  operands.hidden_row_stride = active.row_stride;
  operands.hidden_col_stride = call.hidden.strides[call.hidden.rank - 1];
  operands.weight = call.weight.data;
  operands.weight_row_stride = call.weight.strides[0];
  operands.weight_col_stride = call.weight.strides[1];
  if (call.bias.present()) {
    operands.bias = call.bias.data;
    operands.bias_type = type_code(call.bias.dtype);
    operands.bias_stride = call.bias.strides[0];
  }
  set_rows(operands, call, active);
  if (call.grad_hidden.present()) {
    operands.grad_hidden = call.grad_hidden.data;
    operands.grad_hidden_type = type_code(call.grad_hidden.dtype);
    operands.grad_hidden_row_stride = operands.dim;
    operands.grad_hidden_col_stride = 1;
  }
  if (call.grad_weight.present()) {
    operands.grad_weight = call.grad_weight.data;
    operands.grad_weight_type = type_code(call.grad_weight.dtype);
    operands.grad_weight_row_stride = operands.dim;
    operands.grad_weight_col_stride = 1;
  }
  operands.accumulates = call.accumulates;
  if (call.kept.present()) {
    operands.kept = static_cast<float*>(call.kept.data);
    operands.kept_segments = linear_logp_kept_segments(call);
    operands.kept_pitch = linear_logp_kept_step(call);
    operands.kept_rows = active.num_places;
    operands.kept_places = data_or_null(active.places);
  }
  if (call.grad_bias.present()) {
    operands.grad_bias = call.grad_bias.data;
    operands.grad_bias_stride = 1;
  }
  if (call.chunk != nullptr) {
    const LinearLogpChunk& chunk = *call.chunk;
    operands.goes_on = !chunk.is_first;
    if (operands.goes_on) {
      operands.first_lane = *static_cast<const std::int64_t*>(chunk.state.data);
      if (call.grad_weight.present()) {
        operands.weight_before = static_cast<const float*>(chunk.weight_sums.data);
      }
    }
    operands.bias_lanes = static_cast<float*>(chunk.bias_sums.data);
  }
  return operands;
}

template <class Steps>
Steps steps_of(const LoadedKernel& kernel) {
  Steps steps;
  static_assert(sizeof(Steps) == std::size(Steps::entries) * sizeof(void*));
  std::memcpy(&steps, kernel.entries.data(), sizeof(Steps));
  return steps;
}

}  // namespace

void launch_linear_logp(const LoadedKernel& kernel, const jit::OpCall& base,
                        const jit::LaunchSettings& settings) {
  const auto& call = static_cast<const LinearLogpCall&>(base);
  if (backend(kernel.target) == Backend::cuda) {
    launch_linear_logp_cuda(kernel, call, settings);
    return;
  }
  if (call.unless_one.present() && *static_cast<const float*>(call.unless_one.data) == 1.0f) return;
  const ActiveRows active = active_rows(call, call.hidden, call.weight.shape[0], true);
  const LinearLogpCpuOperands operands = operands_of(call, active);
  const LinearLogpCpuTile tile = linear_logp_cpu_tile(vector_lanes(kernel.target));
  auto& pool = runtime::ThreadPool::instance();
  if (active.num_active < active.num_rows) {  // inactive rows get 0, whatever lay there
    call.pass == jit::Pass::fwd ? zero_results(call) : zero(call.grad_hidden);
  }
  if (call.pass == jit::Pass::fwd) {
    const auto run = call.parts.present() ? join_linear_logp_fwd : launch_linear_logp_fwd;
    run(steps_of<LinearLogpFwdSteps>(kernel), tile, operands, pool);
  } else {
    launch_linear_logp_bwd(steps_of<LinearLogpBwdSteps>(kernel), tile, operands, pool);
    if (call.chunk != nullptr) {  // the lane of the next chunk's first row
      *static_cast<std::int64_t*>(call.chunk->state.data) =
          (operands.first_lane + active.num_active) % tile.panel();
    }
  }
}

}  // namespace rlk
