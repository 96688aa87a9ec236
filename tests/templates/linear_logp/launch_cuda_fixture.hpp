// SPDX-License-Identifier: Apache-2.0
// What a launch of linear_logp asks of the driver, for calls of any size: no memory is behind them.
#pragma once

#include "templates/linear_logp/cuda_plan.hpp"
#include "templates/linear_logp/op.hpp"
#include "tests/templates/common/launch_fixture.hpp"

#include <map>
#include <optional>
#include <vector>

namespace rlk::test {

inline constexpr auto k_bwd = jit::Pass::bwd;

// Sizes and options of a call; tensors are dense and aligned until a test alters them.
struct CudaCase {
  Int64 rows = 1000, vocab = 1000, dim = 64;
  DType dtype = DType::bf16;
  jit::Pass pass = jit::Pass::fwd;
  bool has_mask = false, has_bias = false, has_temperature = false;
  std::optional<Int64> ignore_index = std::nullopt;
  std::optional<double> softcap = std::nullopt;
  double logit_scale = 1.0;
  bool has_entropy = false, has_lse = false;  // backward: upstream gradients of them
  bool has_stats = false;
  bool needs_hidden = true, needs_weight = true, needs_bias = false;
  int kept_segments = 0;                        // whose exponentials are kept
  bool may_overwrite_kept = false;              // backward
  Target target = Target::sm_100;               // the loops that gather; sm_90a has its own
  Int64 tile = 0;                               // of the constant kTile
  std::map<std::size_t, Int64> constants = {};  // others, by their index; else 0
  int max_sms = 0;
  int budget_mib = 512;
  bool validate_sync = false;
};

using CudaStep = LaunchedStep<LinearLogpCudaArgs>;

class LaunchCudaTest : public LaunchFixture<LinearLogpCudaArgs> {
 protected:
  LinearLogpCall make(const CudaCase& wanted);
  // Runs it alone, what came before is forgotten, and checks what holds of every launch: its
  // workspace is what the steps use, and they get every tensor of the call.
  std::vector<CudaStep> run(const LinearLogpCall& call, const CudaCase& wanted);
  std::vector<CudaStep> run(const CudaCase& wanted) { return run(make(wanted), wanted); }

 private:
  void expect_sound_workspace(DType dtype);
};

}  // namespace rlk::test
