// SPDX-License-Identifier: Apache-2.0
// The backward's steps: gradients wanted, rows, zeroing, grids. What a budget does to them is in
// launch_cuda_waves_test.cpp.
#include "tests/templates/linear_logp/launch_cuda_fixture.hpp"

#include <algorithm>

namespace rlk::test {
namespace {

using LaunchCudaBackwardTest = LaunchCudaTest;

TEST_F(LaunchCudaBackwardTest, EverythingReachesTheSteps) {
  const auto all = run({.pass = k_bwd, .has_bias = true, .needs_bias = true});
  ASSERT_EQ(names(), "rows pack grads dz dh join dw db");
  // A leaf of 125 columns is a segment and takes 128 columns of dZ.
  const unsigned blocks[] = {1, 1000, 1, 4 * 8, 4 * 8, 1000, 8, 8 * 128 / 32};
  for (std::size_t i = 0; i < all.size(); ++i) {
    EXPECT_EQ(all[i].blocks, blocks[i]) << all[i].name;
    if (all[i].name == "pack") continue;
    EXPECT_NE(all[i].args.logp, nullptr) << "from which 1 - p of the target is made";
    EXPECT_EQ(all[i].args.hidden_shifted, nullptr) << "scaled for fp16 alone";
    EXPECT_EQ(all[i].args.adds_weight, 0);
    EXPECT_EQ(all[i].args.next_tile, nullptr) << "of sm_90a alone";
  }
  const LinearLogpCudaArgs& args = all[3].args;
  EXPECT_EQ(args.wave.first_segment, 0);
  EXPECT_EQ(args.wave.num_segments, 8);
  EXPECT_EQ(args.wave.first_leaf, 0);
  EXPECT_EQ(args.wave.num_leaves, 1);
  EXPECT_EQ(args.wave.width, 128);
  EXPECT_EQ(args.wave.pitch, 8 * 128);
  EXPECT_EQ(args.strip_rows, 1000);
  EXPECT_EQ(args.sum_pitch, 64);
  EXPECT_EQ(args.wave_sums, nullptr) << "one wave";
  EXPECT_EQ(all[5].args.add_levels, 0);
  EXPECT_EQ(all[5].args.to_level, -1);
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
    if (step.name == "pack") continue;
    EXPECT_EQ(step.args.softcap, 30.0f);
    EXPECT_EQ(step.args.inverse_softcap, 1.0f / 30.0f);
    EXPECT_EQ(step.args.logit_scale, 0.5f);
    EXPECT_EQ(step.args.grad.data, nullptr);
    expect_array(step.args.grad_entropy, call.grad_entropy);
    expect_array(step.args.grad_lse, call.grad_lse);
  }
  EXPECT_EQ(names(), "rows pack grads dz dh join dw");
}

TEST_F(LaunchCudaBackwardTest, OnlyTheGradientsThatAreWanted) {
  for (int needs = 0; needs < 8; ++needs) {
    const CudaCase wanted{.pass = k_bwd,
                          .has_bias = true,
                          .needs_hidden = (needs & 1) != 0,
                          .needs_weight = (needs & 2) != 0,
                          .needs_bias = (needs & 4) != 0};
    const auto all = run(wanted);
    std::string expected = needs == 0 ? "" : "rows pack grads dz";
    if (wanted.needs_hidden) expected += " dh join";
    if (wanted.needs_weight) expected += " dw";
    if (wanted.needs_bias) expected += " db";
    EXPECT_EQ(names(), expected);
    EXPECT_EQ(workspace_.requests.empty(), needs == 0);
    if (needs == 0) continue;
    EXPECT_EQ(all[0].args.grad_hidden != nullptr, wanted.needs_hidden);
    EXPECT_EQ(all[0].args.segment_sums != nullptr, wanted.needs_hidden);
    EXPECT_EQ(all[0].args.grad_weight != nullptr, wanted.needs_weight);
    EXPECT_EQ(all[0].args.grad_bias != nullptr, wanted.needs_bias);
  }
}

// fp16: dW takes hidden rows that are scaled, a copy; dH and db do not.
TEST_F(LaunchCudaBackwardTest, HiddenIsScaledForTheWeightsGradientOfHalves) {
  for (const bool needs_weight : {true, false}) {
    const auto all = run({.dtype = DType::f16, .pass = k_bwd, .needs_weight = needs_weight});
    EXPECT_EQ(names(),
              needs_weight ? "rows pack grads shift dz dh join dw" : "rows pack grads dz dh join");
    EXPECT_EQ(all[0].args.hidden_shifted != nullptr, needs_weight);
  }
  const auto all = run({.rows = 100'000,
                        .dim = 9,
                        .dtype = DType::f16,
                        .pass = k_bwd,
                        .needs_hidden = false,
                        .budget_mib = 4096});
  EXPECT_EQ(names(), "rows pack pack grads shift dz dw");
  EXPECT_EQ(all[4].blocks, 4096u);
  EXPECT_EQ(all[4].args.hidden_shifted_pitch, 16);
}

// The last join writes zeros in rows that are not active, of which it has a block each.
TEST_F(LaunchCudaBackwardTest, HiddensGradientIsNotZeroedFirst) {
  const CudaCase wanted{.rows = 70'000, .dim = 40'000, .pass = k_bwd, .budget_mib = 1 << 20};
  Int64 rows = 0;
  for (const CudaStep& step : run(wanted)) {
    if (step.name != "join" || step.args.to_level >= 0) continue;
    EXPECT_EQ(step.args.first_row, rows);
    rows += Int64{step.blocks};
  }
  EXPECT_GE(rows, wanted.rows);
  EXPECT_TRUE(fake_.memsets.empty());
}

TEST_F(LaunchCudaBackwardTest, NothingIsDoneWhereTheFactorIsOne) {
  const CudaCase wanted{.pass = k_bwd};
  LinearLogpCall call = make(wanted);
  for (const CudaStep& step : run(call, wanted)) EXPECT_EQ(step.args.unless_one, nullptr);
  call.unless_one = tensor(DType::f32, {1});
  for (const CudaStep& step : run(call, wanted)) {
    if (step.name == "pack") continue;
    EXPECT_EQ(step.args.unless_one, call.unless_one.data);
  }
  EXPECT_TRUE(fake_.memsets.empty()) << "which would be done";
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
  // Segments of 31250 columns, 163 leaves and 31296 columns of dZ.
  ASSERT_EQ(names(), "rows pack grads dz dh join dw db");
  EXPECT_EQ(Int64{all[3].blocks}, Int64{1024} * 8 * 163);
  EXPECT_EQ(Int64{all[4].blocks}, Int64{1024} * 8 * 128);
  EXPECT_EQ(all[5].blocks, 262144u);
  EXPECT_EQ(Int64{all[6].blocks}, Int64{8} * 123 * 128);
  EXPECT_EQ(Int64{all[7].blocks}, Int64{8} * 31296 / 32);
}

TEST_F(LaunchCudaBackwardTest, EveryTargetAndTypeKeepsToItsSharedMemory) {
  for (const Target target : cuda_targets()) {
    for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
      const auto all = run({.dtype = dtype, .pass = k_bwd, .target = target});
      unsigned most = 0;
      for (const CudaStep& step : all) most = std::max(most, step.shared_bytes);
      EXPECT_EQ(static_cast<int>(most),
                linear_logp_cuda_shared_bytes(type_code(dtype), target, k_bwd, 0, false))
          << name(target);
      EXPECT_LE(static_cast<int>(most), shared_limit_bytes(target)) << name(target);
    }
  }
}

// dW and db are sums of nothing, and no step is needed for that.
TEST_F(LaunchCudaBackwardTest, NoRowsZeroTheOtherGradients) {
  for (const Target target : {Target::sm_100, Target::sm_90a}) {
    const CudaCase wanted{
        .rows = 0, .pass = k_bwd, .has_bias = true, .needs_bias = true, .target = target};
    const LinearLogpCall call = make(wanted);
    EXPECT_TRUE(run(call, wanted).empty());
    EXPECT_TRUE(workspace_.requests.empty());
    ASSERT_EQ(fake_.memsets.size(), 2u);
    EXPECT_EQ(fake_.memsets[0].address, reinterpret_cast<std::uint64_t>(call.grad_weight.data));
    EXPECT_EQ(fake_.memsets[0].bytes, 1000u * 64 * 2);
    EXPECT_EQ(fake_.memsets[1].address, reinterpret_cast<std::uint64_t>(call.grad_bias.data));
    EXPECT_EQ(fake_.memsets[1].bytes, 1000u * 2);
    EXPECT_TRUE(run({.rows = 0, .pass = k_bwd, .needs_weight = false, .target = target}).empty());
    EXPECT_TRUE(fake_.memsets.empty()) << "of no bytes";
  }
}

// What grad_weight holds stays, and each gets one sum added in its one wave.
TEST_F(LaunchCudaBackwardTest, SumsAreAddedToTheWeightsGradient) {
  for (const Target target : {Target::sm_100, Target::sm_90a}) {
    for (const Int64 rows : {Int64{1000}, Int64{0}}) {
      const CudaCase wanted{.rows = rows, .pass = k_bwd, .target = target};
      LinearLogpCall call = make(wanted);
      call.grad_weight = tensor(DType::f32, {wanted.vocab, wanted.dim});
      call.accumulates = true;
      const auto all = run(call, wanted);
      const auto address = reinterpret_cast<std::uint64_t>(call.grad_weight.data);
      for (const auto& zeroed : fake_.memsets) EXPECT_NE(zeroed.address, address);
      EXPECT_EQ(names(), rows == 0 ? "" : "rows pack grads dz dh join dw");
      for (const CudaStep& step : all) {
        if (step.name == "pack") continue;
        EXPECT_EQ(step.args.adds_weight, 1);
        EXPECT_EQ(step.args.grad_weight, call.grad_weight.data);
        EXPECT_EQ(step.args.grad_weight_row_stride, wanted.dim);
      }
    }
  }
}

// Stored as they are: nothing is added, and nothing zeroed for it.
TEST_F(LaunchCudaBackwardTest, GradientsMayBeFloat32) {
  for (const Target target : {Target::sm_100, Target::sm_90a}) {
    const CudaCase wanted{.pass = k_bwd, .target = target};
    LinearLogpCall call = make(wanted);
    call.grad_hidden = tensor(DType::f32, {wanted.rows, wanted.dim});
    call.grad_weight = tensor(DType::f32, {wanted.vocab, wanted.dim});
    const auto all = run(call, wanted);
    const auto address = reinterpret_cast<std::uint64_t>(call.grad_weight.data);
    for (const auto& zeroed : fake_.memsets) EXPECT_NE(zeroed.address, address);
    EXPECT_EQ(names(), "rows pack grads dz dh join dw");
    for (const CudaStep& step : all) {
      if (step.name == "pack") continue;
      EXPECT_EQ(step.args.adds_weight, 0);
      EXPECT_EQ(step.args.grad_hidden_type, 1);
      EXPECT_EQ(step.args.grad_weight_type, 1);
    }
    call.grad_hidden = tensor(wanted.dtype, {wanted.rows, wanted.dim});
    call.grad_weight = tensor(wanted.dtype, {wanted.vocab, wanted.dim});
    const auto own = run(call, wanted);
    EXPECT_EQ(own.back().args.grad_hidden_type, type_code(wanted.dtype));
    EXPECT_EQ(own.back().args.grad_weight_type, type_code(wanted.dtype));
  }
}

TEST_F(LaunchCudaBackwardTest, SmallestSizes) {
  for (const Int64 dim : {1, 2, 8}) {
    const auto all = run({.rows = 1, .vocab = 1, .dim = dim, .pass = k_bwd});
    EXPECT_EQ(names(),
              dim == 8 ? "rows pack grads dz dh join dw" : "rows pack pack grads dz dh join dw");
    for (const CudaStep& step : all) EXPECT_EQ(step.blocks, 1u) << step.name;
    EXPECT_EQ(all.back().args.wave.pitch, 64);
    EXPECT_EQ(all.back().args.sum_pitch, round_up(dim, 4));
  }
}

}  // namespace
}  // namespace rlk::test
