// SPDX-License-Identifier: Apache-2.0
// The backward's steps: gradients wanted, waves of every budget, zeroing, workspace.
#include "tests/templates/linear_logp/launch_cuda_fixture.hpp"

#include <algorithm>

namespace rlk::test {
namespace {

using LaunchCudaBackwardTest = LaunchCudaTest;

constexpr auto k_bwd = jit::Pass::bwd;

TEST_F(LaunchCudaBackwardTest, EverythingReachesTheSteps) {
  const auto all = run({.pass = k_bwd, .has_bias = true, .needs_bias = true});
  ASSERT_EQ(names(), "grads dz dh dw db");
  for (const CudaStep& step : all) {
    EXPECT_EQ(step.args.logp, nullptr);
    EXPECT_EQ(step.args.hidden_shifted, step.args.hidden) << "scaled for fp16 alone";
  }
  const unsigned blocks[] = {1, 4 * 6, 4, 4, 32};
  for (std::size_t i = 0; i < all.size(); ++i) EXPECT_EQ(all[i].blocks, blocks[i]) << all[i].name;
  EXPECT_EQ(all[1].args.wave_begin, 0);
  EXPECT_EQ(all[1].args.wave_cols, 1000);
  EXPECT_EQ(all[1].args.grad_hidden_sum, nullptr) << "one wave";
}

// Of any stride and type.
TEST_F(LaunchCudaBackwardTest, EveryUpstreamGradientReachesTheSteps) {
  const CudaCase wanted{
      .pass = k_bwd, .softcap = 30.0, .logit_scale = 0.5, .has_entropy = true, .has_lse = true};
  LinearLogpCall call = make(wanted);
  call.grad_output = {};
  call.grad_entropy = view(tensor(DType::bf16, {1000}), {3});
  call.grad_lse = view(tensor(DType::f64, {1000}), {0});
  for (const CudaStep& step : run(call, wanted)) {
    EXPECT_EQ(step.args.softcap, 30.0f);
    EXPECT_EQ(step.args.inverse_softcap, 1.0f / 30.0f);
    EXPECT_EQ(step.args.logit_scale, 0.5f);
    EXPECT_EQ(step.args.grad.data, nullptr);
    expect_array(step.args.grad_entropy, call.grad_entropy);
    expect_array(step.args.grad_lse, call.grad_lse);
  }
  EXPECT_EQ(names(), "grads dz dh dw");
}

TEST_F(LaunchCudaBackwardTest, OnlyTheGradientsThatAreWanted) {
  for (int needs = 0; needs < 8; ++needs) {
    const CudaCase wanted{.pass = k_bwd,
                          .has_bias = true,
                          .needs_hidden = (needs & 1) != 0,
                          .needs_weight = (needs & 2) != 0,
                          .needs_bias = (needs & 4) != 0};
    const auto all = run(wanted);
    std::string expected = needs == 0 ? "" : "grads dz";
    if (wanted.needs_hidden) expected += " dh";
    if (wanted.needs_weight) expected += " dw";
    if (wanted.needs_bias) expected += " db";
    EXPECT_EQ(names(), expected);
    EXPECT_EQ(workspace_.requests.empty(), needs == 0);
    if (needs == 0) continue;
    EXPECT_EQ(all[0].args.grad_hidden != nullptr, wanted.needs_hidden);
    EXPECT_EQ(all[0].args.grad_weight != nullptr, wanted.needs_weight);
    EXPECT_EQ(all[0].args.grad_bias != nullptr, wanted.needs_bias);
  }
}

// fp16: dW takes hidden rows that are scaled, a copy; dH and db do not.
TEST_F(LaunchCudaBackwardTest, HiddenIsScaledForTheWeightsGradientOfHalves) {
  for (const bool needs_weight : {true, false}) {
    const auto all = run({.dtype = DType::f16, .pass = k_bwd, .needs_weight = needs_weight});
    EXPECT_EQ(names(), needs_weight ? "grads shift dz dh dw" : "grads dz dh");
    EXPECT_EQ(all[0].args.hidden_shifted != all[0].args.hidden, needs_weight);
  }
  const auto all = run({.rows = 100'000, .dim = 9, .dtype = DType::f16, .pass = k_bwd});
  EXPECT_EQ(names(), "pack pack grads shift dz dh dw");
  EXPECT_EQ(all[3].blocks, 4096u);
  EXPECT_EQ(all[3].args.hidden_shifted_pitch, 16);
}

// No step writes rows that are not active, so they are zeroed where there may be some.
TEST_F(LaunchCudaBackwardTest, HiddensGradientIsZeroedWhereRowsMayBeInactive) {
  for (const bool compacts : {false, true}) {
    for (const bool needs_hidden : {false, true}) {
      CudaCase wanted{.rows = 70'000, .dim = 40'000, .pass = k_bwd, .needs_hidden = needs_hidden};
      if (compacts) wanted.ignore_index = -100;
      const LinearLogpCall call = make(wanted);
      run(call, wanted);
      ASSERT_EQ(fake_.memsets.size(), compacts && needs_hidden ? 1u : 0u);
      if (fake_.memsets.empty()) continue;
      const auto& zeroed = fake_.memsets[0];
      EXPECT_EQ(zeroed.address, reinterpret_cast<std::uint64_t>(call.grad_hidden.data));
      EXPECT_EQ(zeroed.bytes, std::size_t{70'000} * 40'000 * 2);
      EXPECT_LT(std::ranges::find(fake_.order, "cuMemsetD8Async"),
                std::ranges::find(fake_.order, "cuLaunchKernel"));
    }
  }
}

struct Wave {
  Int64 begin, cols;
};

// The waves of the steps; each runs the same steps over its columns.
std::vector<Wave> waves_of(const std::vector<CudaStep>& all, Int64 tile_rows) {
  std::vector<Wave> waves;
  for (const CudaStep& step : all) {
    if (step.name == "dz") {
      waves.push_back({step.args.wave_begin, step.args.wave_cols});
      EXPECT_EQ(Int64{step.blocks},
                ceil_div(step.args.num_rows, tile_rows) * ceil_div(step.args.wave_cols, kLogpLeaf));
    }
    if (step.name == "dh" || step.name == "dw" || step.name == "db") {
      EXPECT_EQ(step.args.wave_begin, waves.back().begin);
      EXPECT_EQ(step.args.wave_cols, waves.back().cols);
    }
  }
  return waves;
}

void expect_waves(const std::vector<CudaStep>& all, const CudaCase& wanted) {
  const Int64 tile_rows = wanted.dtype == DType::f32 ? 64 : 256;
  const std::vector<Wave> waves = waves_of(all, tile_rows);
  const LinearLogpCudaArgs& args = all.back().args;
  ASSERT_GT(args.wave_pitch, 0);
  ASSERT_EQ(args.wave_pitch % kLogpLeaf, 0);
  Int64 next = 0;
  for (const Wave& wave : waves) {
    ASSERT_EQ(wave.begin, next);
    ASSERT_GT(wave.cols, 0);
    ASSERT_LE(wave.cols, args.wave_pitch);
    next += wave.cols;
  }
  EXPECT_EQ(next, wanted.vocab);
  const Int64 leaves = ceil_div(wanted.vocab, kLogpLeaf);
  EXPECT_EQ(args.wave_pitch / kLogpLeaf, ceil_div(leaves, static_cast<Int64>(waves.size())))
      << "of like size";

  // Sums of dH between waves are kept in fp32, as whole tiles.
  const bool sums = wanted.needs_hidden && waves.size() > 1;
  EXPECT_EQ(args.grad_hidden_sum != nullptr, sums);
  const Int64 tile_cols = wanted.dtype == DType::f32 ? 192 : 128;
  const Int64 sum_bytes =
      sums ? round_up(wanted.rows, tile_rows) * round_up(wanted.dim, tile_cols) * 4 : 0;
  const Int64 element_bytes = static_cast<Int64>(size_bytes(wanted.dtype));
  const Int64 leaf_bytes = wanted.rows * kLogpLeaf * element_bytes;
  const Int64 budget = Int64{wanted.budget_mib} << 20;
  const Int64 used = wanted.rows * args.wave_pitch * element_bytes + sum_bytes;
  if (args.wave_pitch > kLogpLeaf) {
    EXPECT_LE(used, budget);
  }
  if (budget >= leaves * leaf_bytes) {
    EXPECT_EQ(waves.size(), 1u) << "which needs no sums";
  }
  // No more waves than the budget asks for.
  if (waves.size() > 1 && budget - sum_bytes >= leaf_bytes) {
    EXPECT_EQ(static_cast<Int64>(waves.size()),
              ceil_div(leaves, (budget - sum_bytes) / leaf_bytes));
  }
}

TEST_F(LaunchCudaBackwardTest, WavesCoverEachColumnOnceWithinTheBudget) {
  for (const int budget_mib : {1, 8, 64, 512, 1040, 4096, 1 << 20}) {
    for (const CudaCase& sizes :
         {CudaCase{.rows = 4096, .vocab = 131072, .dim = 2048},
          CudaCase{.rows = 4096, .vocab = 50257, .dim = 2047},
          CudaCase{.rows = 262144, .vocab = 250000, .dim = 4096},
          CudaCase{.rows = 1, .vocab = 128256, .dim = 4096}, CudaCase{.rows = 16, .vocab = 1},
          CudaCase{.rows = 1000, .vocab = 193}, CudaCase{.rows = 2731, .vocab = 384, .dim = 8}}) {
      for (const bool needs_hidden : {true, false}) {
        for (const DType dtype : {DType::bf16, DType::f32, DType::f16}) {
          CudaCase wanted = sizes;
          wanted.dtype = dtype;
          wanted.pass = k_bwd;
          wanted.has_bias = wanted.needs_bias = true;
          wanted.needs_hidden = needs_hidden;
          wanted.budget_mib = budget_mib;
          SCOPED_TRACE(testing::Message() << sizes.rows << " x " << sizes.vocab << " in "
                                          << budget_mib << " MiB, " << name(dtype));
          const auto all = run(wanted);
          expect_waves(all, wanted);
        }
      }
    }
  }
}

// Compared in 64 bits: a grid that overflowed its 32 would differ.
TEST_F(LaunchCudaBackwardTest, GridsOfTheLargestCalls) {
  const CudaCase wanted{.rows = 262144,
                        .vocab = 250000,
                        .dim = 16384,
                        .pass = k_bwd,
                        .has_bias = true,
                        .needs_bias = true,
                        .budget_mib = 1 << 20};
  const auto all = run(wanted);
  ASSERT_EQ(names(), "grads dz dh dw db");
  EXPECT_EQ(Int64{all[1].blocks}, Int64{1024} * 1303);
  EXPECT_EQ(Int64{all[2].blocks}, Int64{1024} * 128);
  EXPECT_EQ(Int64{all[3].blocks}, Int64{977} * 128);
  EXPECT_EQ(Int64{all[4].blocks}, Int64{7813});
}

TEST_F(LaunchCudaBackwardTest, EveryTargetAndTypeKeepsToItsSharedMemory) {
  for (const Target target : cuda_targets()) {
    for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
      const auto all = run({.dtype = dtype, .pass = k_bwd, .target = target});
      unsigned most = 0;
      for (const CudaStep& step : all) most = std::max(most, step.shared_bytes);
      EXPECT_EQ(static_cast<int>(most),
                linear_logp_cuda_shared_bytes(type_code(dtype), target, k_bwd, 0))
          << name(target);
      EXPECT_LE(static_cast<int>(most), shared_limit_bytes(target)) << name(target);
    }
  }
}

// dW and db are zero without rows, and are still written.
TEST_F(LaunchCudaBackwardTest, NoRowsStillWriteTheOtherGradients) {
  const auto all = run({.rows = 0, .pass = k_bwd, .has_bias = true, .needs_bias = true});
  EXPECT_EQ(names(), "grads dw db");
  EXPECT_EQ(all[1].blocks, 4u);
  run({.rows = 0, .pass = k_bwd, .ignore_index = -100, .needs_weight = false});
  EXPECT_TRUE(fake_.memsets.empty()) << "of no bytes";
}

TEST_F(LaunchCudaBackwardTest, SmallestSizes) {
  for (const Int64 dim : {1, 2, 8}) {
    const auto all = run({.rows = 1, .vocab = 1, .dim = dim, .pass = k_bwd});
    EXPECT_EQ(names(), dim == 8 ? "grads dz dh dw" : "pack pack grads dz dh dw");
    for (const CudaStep& step : all) EXPECT_EQ(step.blocks, 1u) << step.name;
  }
}

}  // namespace
}  // namespace rlk::test
