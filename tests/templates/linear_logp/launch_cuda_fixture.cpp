// SPDX-License-Identifier: Apache-2.0
// Makes calls without memory, runs them and reads the fake driver's notes.
#include "tests/templates/linear_logp/launch_cuda_fixture.hpp"

#include <algorithm>
#include <bit>

namespace rlk::test {

LinearLogpCall LaunchCudaTest::make(const CudaCase& wanted) {
  LinearLogpCall call;
  call.op = &templates::linear_logp_op;
  call.pass = wanted.pass;
  call.device = {Device::Kind::cuda, k_device};
  call.stream = k_stream;
  call.workspace = &workspace_;
  const DType dtype = wanted.dtype;
  call.hidden = tensor(dtype, {wanted.rows, wanted.dim});
  call.weight = tensor(dtype, {wanted.vocab, wanted.dim});
  call.target = tensor(DType::i64, {wanted.rows});
  if (wanted.has_bias) call.bias = tensor(dtype, {wanted.vocab});
  if (wanted.has_temperature) call.temperature = tensor(DType::f32, {wanted.rows});
  if (wanted.has_mask) call.mask = tensor(DType::boolean, {wanted.rows});
  call.ignore_index = wanted.ignore_index;
  call.softcap = wanted.softcap;
  call.logit_scale = wanted.logit_scale;
  if (wanted.has_entropy) call.entropy = tensor(DType::f32, {wanted.rows});
  call.row_max = tensor(DType::f32, {wanted.rows});
  call.row_log_sum = tensor(DType::f32, {wanted.rows});
  call.log_prob = tensor(DType::f32, {wanted.rows});
  if (wanted.kept_segments > 0) {
    const Int64 step = linear_logp_kept_step(call);
    call.kept = tensor(dtype, {wanted.rows, wanted.kept_segments * step});
  }
  call.may_overwrite_kept = wanted.may_overwrite_kept;
  if (wanted.pass == jit::Pass::fwd) {
    if (wanted.has_lse) call.lse = tensor(DType::f32, {wanted.rows});
    if (!wanted.has_stats) return call;
    call.max_logit = tensor(DType::f32, {wanted.rows});
    call.argmax = tensor(DType::i64, {wanted.rows});
    call.mean_logit = tensor(DType::f32, {wanted.rows});
    call.sum_p2 = tensor(DType::f32, {wanted.rows});
    return call;
  }
  call.grad_output = tensor(DType::f32, {wanted.rows});
  if (wanted.has_entropy) call.grad_entropy = tensor(DType::f32, {wanted.rows});
  if (wanted.has_lse) call.grad_lse = tensor(DType::f32, {wanted.rows});
  if (wanted.needs_hidden) call.grad_hidden = tensor(dtype, {wanted.rows, wanted.dim});
  if (wanted.needs_weight) call.grad_weight = tensor(dtype, {wanted.vocab, wanted.dim});
  if (wanted.needs_bias) call.grad_bias = tensor(dtype, {wanted.vocab});
  return call;
}

std::vector<CudaStep> LaunchCudaTest::run(const LinearLogpCall& call, const CudaCase& wanted) {
  forget();
  LoadedKernel kernel = load_entries(linear_logp_cuda_entries(wanted.pass));
  kernel.target = wanted.target;
  kernel.constants[k_linear_logp_tile] = wanted.tile;
  for (const auto& [index, value] : wanted.constants) kernel.constants[index] = value;
  launch_linear_logp_cuda(kernel, call,
                          {Int64{wanted.budget_mib} << 20, wanted.max_sms, wanted.validate_sync});
  if (wanted.validate_sync) return steps();
  expect_sound(wanted.target);
  expect_sound_workspace(wanted.dtype);
  if (call.parts.present()) {
    expect_given(
        {&call.target, &call.mask, &call.log_prob, &call.row_max, &call.row_log_sum, &call.parts});
  } else if (!fake_.launches.empty()) {
    expect_given({&call.hidden,       &call.weight,     &call.target,      &call.bias,
                  &call.temperature,  &call.mask,       &call.entropy,     &call.row_max,
                  &call.row_log_sum,  &call.log_prob,   &call.lse,         &call.max_logit,
                  &call.argmax,       &call.mean_logit, &call.sum_p2,      &call.grad_output,
                  &call.grad_entropy, &call.grad_lse,   &call.grad_hidden, &call.grad_weight,
                  &call.grad_bias,    &call.kept,       &call.unless_one});
  }
  return steps();
}

void LaunchCudaTest::expect_sound_workspace(DType dtype) {
  WorkspaceArrays arrays;
  const auto element_bytes = static_cast<int>(size_bytes(dtype));
  const auto add = [&](const char* name, const void* data, Int64 bytes) {
    arrays.add(name, data, bytes);
  };
  for (const CudaStep& step : steps()) {
    if (step.name == "pack") {
      // Of a chunk of rows, hidden has memory of the caller's.
      if (reinterpret_cast<std::uintptr_t>(step.copy.to) < FakeWorkspace::k_address) continue;
      add("copy", step.copy.to, step.copy.num_rows * step.copy.pitch * step.copy.element_bytes);
      continue;
    }
    const LinearLogpCudaArgs& args = step.args;
    const Int64 rows = std::max<Int64>(args.num_rows, 1);
    const Int64 leaves = args.leaves().count();
    add("rows", args.rows, (args.num_rows + 1) * 8);
    EXPECT_EQ(args.num_active, args.rows == nullptr ? nullptr : args.rows + args.num_rows);
    add("partial_max", args.partial_max, leaves * args.strip_rows * 4);
    add("partial_sum", args.partial_sum, leaves * args.strip_rows * 4);
    add("partial_moment", args.partial_moment, leaves * args.strip_rows * 4);
    add("logits", args.partial_stats.logits, leaves * args.strip_rows * 4);
    add("squares", args.partial_stats.squares, leaves * args.strip_rows * 4);
    add("argmax", args.partial_stats.argmax, leaves * args.strip_rows * 4);
    add("target_logit", args.target_logit, args.strip_rows * 4);
    if (args.row_grad == nullptr && args.first_row == 0 && args.strip_rows > 0) {
      add("next_tile", args.next_tile, ceil_div(rows, args.strip_rows) * 4);
    }
    add("row_grad", args.row_grad, rows * Int64{sizeof(LinearLogpRowGrad)});
    add("row_shift", args.row_shift, rows * 4);
    add("call_shift", args.call_shift, 4);
    add("terms", args.chunk.terms, Int64{sizeof(LinearLogpTerms)});
    add("hidden_shifted", args.hidden_shifted, rows * args.hidden_shifted_pitch * element_bytes);
    if (step.name != "dz" && step.name != "turn") continue;
    const LinearLogpWave& wave = args.wave;
    if (wave.grad_logits != args.kept.data) {
      add("grad_logits", wave.grad_logits, rows * wave.pitch * element_bytes);
    }
    if (wave.first_segment > 0 || wave.first_leaf > 0) continue;
    const LogpLeaves<kLogpLeaf> shape = args.leaves();
    const Int64 waves = ceil_div(shape.count() / shape.of_segment(), wave.num_segments);
    const auto levels = static_cast<Int64>(std::bit_width(static_cast<std::uint64_t>(waves - 1)));
    add("segment_sums", args.segment_sums,
        wave.num_segments * args.strip_rows * args.sum_pitch * 4);
    add("wave_sums", args.wave_sums, levels * rows * args.sum_pitch * 4);
    add("next_tile", args.next_tile, waves * ceil_div(shape.of_segment(), wave.num_leaves) * 4);
  }
  arrays.expect_fill(workspace_);
}

}  // namespace rlk::test
