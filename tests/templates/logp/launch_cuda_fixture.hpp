// SPDX-License-Identifier: Apache-2.0
// What a launch of logp asks of the driver, for calls of any size: no memory is behind them.
#pragma once

#include "templates/logp/cuda_args.h"
#include "templates/logp/op.hpp"
#include "tests/templates/common/launch_fixture.hpp"

#include <optional>
#include <vector>

namespace rlk::test {

// Sizes and options of a call; tensors are dense until a test alters them.
struct LogpCase {
  Int64 rows = 1000, vocab = 1000;
  DType dtype = DType::bf16;
  jit::Pass pass = jit::Pass::fwd;
  bool has_mask = false, has_temperature = false;
  std::optional<Int64> ignore_index = std::nullopt;
  std::optional<double> softcap = std::nullopt;
  double logit_scale = 1.0;
  bool has_entropy = false, has_lse = false;  // backward: upstream gradients of them
  bool has_stats = false;
  bool validate_sync = false;
};

using LogpStep = LaunchedStep<LogpCudaArgs>;

class LaunchLogpTest : public LaunchFixture<LogpCudaArgs> {
 protected:
  static constexpr Int64 k_num_sms = 132;  // of the fake card

  LogpCall make(const LogpCase& wanted) {
    LogpCall call;
    call.op = &templates::logp_op;
    call.pass = wanted.pass;
    call.device = {Device::Kind::cuda, k_device};
    call.stream = k_stream;
    call.workspace = &workspace_;
    const auto per_row = [&](bool present) {
      return present ? tensor(DType::f32, {wanted.rows}) : Tensor();
    };
    call.logits = tensor(wanted.dtype, {wanted.rows, wanted.vocab});
    call.target = tensor(DType::i64, {wanted.rows});
    call.temperature = per_row(wanted.has_temperature);
    if (wanted.has_mask) call.mask = tensor(DType::boolean, {wanted.rows});
    call.ignore_index = wanted.ignore_index;
    call.softcap = wanted.softcap;
    call.logit_scale = wanted.logit_scale;
    call.entropy = per_row(wanted.has_entropy);
    call.row_max = per_row(true);
    call.row_log_sum = per_row(true);
    if (wanted.pass == jit::Pass::fwd) {
      call.log_prob = per_row(true);
      call.lse = per_row(wanted.has_lse);
      if (!wanted.has_stats) return call;
      call.max_logit = tensor(DType::f32, {wanted.rows});
      call.argmax = tensor(DType::i64, {wanted.rows});
      call.mean_logit = tensor(DType::f32, {wanted.rows});
      call.sum_p2 = tensor(DType::f32, {wanted.rows});
      return call;
    }
    call.grad_output = per_row(true);
    call.grad_entropy = per_row(wanted.has_entropy);
    call.grad_lse = per_row(wanted.has_lse);
    call.grad_logits = tensor(wanted.dtype, {wanted.rows, wanted.vocab});
    return call;
  }

  // Runs it alone, what came before is forgotten, and checks what holds of every launch: its
  // workspace is what the steps use, and they get every tensor of the call.
  std::vector<LogpStep> run(const LogpCall& call, bool validate_sync = false) {
    forget();
    LoadedKernel kernel = load_entries(logp_entries(call.pass, Backend::cuda));
    kernel.target = Target::sm_90a;
    launch_logp(kernel, call, {.validate_sync = validate_sync});
    if (validate_sync) return steps();
    expect_sound(kernel.target);
    expect_sound_workspace();
    if (!fake_.launches.empty()) {
      expect_given({&call.logits, &call.target, &call.temperature, &call.mask, &call.entropy,
                    &call.row_max, &call.row_log_sum, &call.log_prob, &call.lse, &call.max_logit,
                    &call.argmax, &call.mean_logit, &call.sum_p2, &call.grad_output,
                    &call.grad_entropy, &call.grad_lse, &call.grad_logits, &call.unless_one});
    }
    return steps();
  }
  std::vector<LogpStep> run(const LogpCase& wanted) {
    return run(make(wanted), wanted.validate_sync);
  }

 private:
  void expect_sound_workspace() {
    WorkspaceArrays arrays;
    for (const LogpStep& step : steps()) {
      if (step.name == "pack") {
        arrays.add("copy", step.copy.to,
                   step.copy.num_rows * step.copy.pitch * step.copy.element_bytes);
        continue;
      }
      const LogpCudaArgs& args = step.args;
      const Int64 bytes = args.num_rows * logp_num_leaves(args.vocab) * 4;
      arrays.add("partial_max", args.partial_max, bytes);
      arrays.add("partial_sum", args.partial_sum, bytes);
      arrays.add("partial_moment", args.partial_moment, bytes);
      arrays.add("logits", args.partial_stats.logits, bytes);
      arrays.add("squares", args.partial_stats.squares, bytes);
      arrays.add("argmax", args.partial_stats.argmax, bytes);
    }
    arrays.expect_fill(workspace_);
  }
};

}  // namespace rlk::test
