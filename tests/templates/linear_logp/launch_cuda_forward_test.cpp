// SPDX-License-Identifier: Apache-2.0
// The forward's steps: order, grids, strips, copies and workspace.
#include "tests/templates/linear_logp/launch_cuda_fixture.hpp"

namespace rlk::test {
namespace {

using LaunchCudaForwardTest = LaunchCudaTest;

TEST_F(LaunchCudaForwardTest, AlignedOperandsAreReadInPlace) {
  const auto all = run(CudaCase{});
  ASSERT_EQ(names(), "main merge");
  // 4 tiles of 256 rows by 8 leaves.
  EXPECT_EQ(all[0].blocks, 4u * 8);
  EXPECT_EQ(all[1].blocks, 1024u / kLinearLogpMergeRows);
  EXPECT_TRUE(fake_.memsets.empty());
  for (const CudaStep& step : all) {
    const LinearLogpCudaArgs& args = step.args;
    EXPECT_EQ(args.rows, nullptr) << "none is listed";
    EXPECT_EQ(args.softcap, 0.0f) << "none";
    EXPECT_EQ(args.partial_moment, nullptr);
    EXPECT_NE(args.error, nullptr);
    EXPECT_STREQ(args.op, "linear_logp");
  }
}

TEST_F(LaunchCudaForwardTest, OptionsReachTheKernels) {
  CudaCase wanted{.has_mask = true, .has_bias = true, .has_temperature = true, .ignore_index = 7};
  LinearLogpCall call = make(wanted);
  call.bias = view(tensor(DType::f32, {1000}), {0});
  call.temperature = view(tensor(DType::bf16, {1000}), {3});
  call.target.dtype = DType::u16;
  const LinearLogpCudaArgs args = run(call, wanted).at(1).args;
  ASSERT_EQ(names(), "rows main merge");
  expect_array(args.bias, call.bias);
  expect_array(args.temperature, call.temperature);
  expect_array(args.mask, call.mask);
  expect_array(args.target, call.target);
  EXPECT_EQ(args.has_ignore_index, 1);
  EXPECT_EQ(args.ignore_index, 7);
  call.temperature = Tensor();
  call.temperature.value = 0.3;
  EXPECT_EQ(run(call, wanted)[1].args.inverse_temperature, 1.0f / static_cast<float>(0.3));
}

// Two of the eight segments of 2048 columns.
TEST_F(LaunchCudaForwardTest, ARankReducesItsSegmentsToItsPart) {
  LinearLogpCall call = make({.vocab = 512});
  call.first_id = 1024;
  call.num_ids = 2048;
  call.segment = 256;
  call.part = tensor(DType::f32, {3, 1000});
  const auto all = run(call, {.vocab = 512});
  ASSERT_EQ(names(), "main merge");
  EXPECT_EQ(all[0].blocks, 4u * 2 * 2) << "tiles of rows by segments by leaves";
  for (const CudaStep& step : all) {
    const LogpShard& shard = step.args.shard;
    EXPECT_EQ(shard.begin, 1024);
    EXPECT_EQ(shard.num_ids, 2048);
    EXPECT_EQ(shard.segment, 256);
    EXPECT_EQ(shard.gives_part, 1);
  }
}

TEST_F(LaunchCudaForwardTest, PartsOfAllRanksAreJoinedAlone) {
  CudaCase wanted{.has_mask = true};
  LinearLogpCall call = make(wanted);
  call.num_ids = 4000;
  call.parts = tensor(DType::f32, {4, 3, 1000});
  const auto all = run(call, wanted);
  ASSERT_EQ(names(), "join");
  EXPECT_EQ(all[0].blocks, 4u) << "of 256 rows";
  EXPECT_EQ(all[0].args.shard.num_parts, 4);
  EXPECT_EQ(all[0].args.shard.call_rows, 1000);
  EXPECT_EQ(all[0].args.shard.gives_part, 0);
}

TEST_F(LaunchCudaForwardTest, SoftcapAndLogitScaleAreRoundedOnce) {
  const auto all = run({.softcap = 30.1, .logit_scale = 0.0625001});
  for (const CudaStep& step : all) {
    EXPECT_EQ(step.args.softcap, 30.1f);
    EXPECT_EQ(step.args.inverse_softcap, 1.0f / 30.1f);
    EXPECT_EQ(step.args.logit_scale, 0.0625001f);
  }
}

TEST_F(LaunchCudaForwardTest, EntropyTakesAThirdPartialStatisticsThreeMoreAndLseNone) {
  for (const bool has_entropy : {false, true}) {
    for (const bool has_stats : {false, true}) {
      for (const CudaStep& step :
           run({.has_entropy = has_entropy, .has_lse = true, .has_stats = has_stats})) {
        EXPECT_EQ(step.args.partial_moment != nullptr, has_entropy);
        EXPECT_EQ(step.args.partial_stats.argmax != nullptr, has_stats);
        EXPECT_EQ(step.args.stats.argmax != nullptr, has_stats);
      }
      EXPECT_EQ(names(), "main merge");
    }
  }
}

// Without mask and ignore_index nothing is compacted.
TEST_F(LaunchCudaForwardTest, RowsAreListedOnlyWhereSomeMayBeInactive) {
  EXPECT_EQ(run({}).size(), 2u);
  for (const CudaCase& wanted : {CudaCase{.ignore_index = -100}, CudaCase{.has_mask = true},
                                 CudaCase{.rows = 1024, .has_mask = true, .ignore_index = 0}}) {
    const auto all = run(wanted);
    ASSERT_EQ(names(), "rows main merge");
    EXPECT_EQ(all[0].blocks, 1u);
    // The loop gathers through the list, hidden stays where it is.
    EXPECT_EQ(all[1].args.hidden_packed, 0);
    EXPECT_NE(all[1].args.rows, nullptr);
    EXPECT_TRUE(fake_.memsets.empty());
  }
}

TEST_F(LaunchCudaForwardTest, RowMaxAndLogSumMayBeAbsent) {
  LinearLogpCall call = make({});
  call.row_max = call.row_log_sum = {};
  const LinearLogpCudaArgs args = run(call, {})[1].args;
  EXPECT_EQ(args.row_max, nullptr);
  EXPECT_EQ(args.row_log_sum, nullptr);
}

TEST_F(LaunchCudaForwardTest, EveryTargetAndTypeKeepsToItsSharedMemory) {
  for (const Target target : cuda_targets()) {
    for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
      const auto all = run(CudaCase{.dtype = dtype, .target = target});
      const int most =
          linear_logp_cuda_shared_bytes(type_code(dtype), target, jit::Pass::fwd, 0, false);
      if (linear_logp_uses_sm90_loop(type_code(dtype), target)) continue;
      EXPECT_EQ(static_cast<int>(all[0].shared_bytes), most) << name(target);
      EXPECT_LE(most, shared_limit_bytes(target)) << name(target);
      const unsigned tile_rows = dtype == DType::f32 ? 64 : 256;
      EXPECT_EQ(all[0].blocks, ceil_div(1000, tile_rows) * 8);
    }
  }
}

// Each strip takes the rows after the one before it, until all are taken.
void expect_strips(const std::vector<CudaStep>& all, const CudaCase& wanted, Int64 tile_rows) {
  ASSERT_EQ(all.size() % 2, 0u);
  const Int64 leaves = logp_num_leaves(wanted.vocab);
  Int64 next = 0;
  for (std::size_t i = 0; i < all.size(); i += 2) {
    const LinearLogpCudaArgs& args = all[i].args;
    EXPECT_EQ(all[i].name, "main");
    EXPECT_EQ(all[i + 1].name, "merge");
    ASSERT_EQ(args.first_row, next);
    ASSERT_GT(args.strip_rows, 0);
    ASSERT_EQ(args.strip_rows % tile_rows, 0);
    EXPECT_EQ(all[i + 1].args.first_row, next);
    EXPECT_EQ(all[i + 1].args.strip_rows, args.strip_rows);
    // Compared in 64 bits: a grid that overflowed its 32 would differ.
    const Int64 num_rows = std::min<Int64>(args.strip_rows, wanted.rows - next);
    ASSERT_EQ(Int64{all[i].blocks}, ceil_div(num_rows, tile_rows) * leaves);
    ASSERT_LT(Int64{all[i].blocks}, Int64{1} << 31);
    ASSERT_EQ(Int64{all[i + 1].blocks}, args.strip_rows / kLinearLogpMergeRows);
    if (args.strip_rows > tile_rows) {
      const Int64 partial_bytes = 8 + (wanted.has_entropy ? 4 : 0) + (wanted.has_stats ? 12 : 0);
      EXPECT_LE(args.strip_rows * leaves * partial_bytes,
                std::min(64, wanted.budget_mib) * Int64{1} << 20);
    }
    next += args.strip_rows;
  }
  EXPECT_GE(next, wanted.rows);
  EXPECT_LT(next - all.back().args.strip_rows, wanted.rows);
}

TEST_F(LaunchCudaForwardTest, RowsGoInStrips) {
  for (const CudaCase& wanted :
       {CudaCase{.rows = 262144, .vocab = 250000, .dim = 4096},
        CudaCase{.rows = 262144, .vocab = 128256, .dim = 8192},
        CudaCase{.rows = 4096, .vocab = 131072, .dim = 2048},
        CudaCase{.rows = 4096, .vocab = 131072, .has_entropy = true, .budget_mib = 9},
        CudaCase{.rows = 4096, .vocab = 131072, .has_stats = true, .budget_mib = 9},
        CudaCase{.rows = 6400, .vocab = 250000}, CudaCase{.rows = 6401, .vocab = 250000},
        CudaCase{.rows = 4096, .vocab = 131072, .budget_mib = 2},
        CudaCase{.rows = 4096, .vocab = 131072, .budget_mib = 1},
        CudaCase{.rows = 257, .vocab = 20'000'000, .dim = 8},
        CudaCase{.rows = 1'000'000, .vocab = 1, .dim = 8}, CudaCase{.rows = 1}}) {
    for (const DType dtype : {DType::bf16, DType::f32}) {
      CudaCase typed = wanted;
      typed.dtype = dtype;
      const auto all = run(typed);
      SCOPED_TRACE(testing::Message() << wanted.rows << " x " << wanted.vocab);
      expect_strips(all, typed, dtype == DType::f32 ? 64 : 256);
    }
  }
}

TEST_F(LaunchCudaForwardTest, SmallestSizes) {
  for (const Int64 vocab : {1, 2, 192, 193}) {
    for (const Int64 dim : {1, 7, 8, 9}) {
      const auto all = run({.rows = 1, .vocab = vocab, .dim = dim, .ignore_index = -100});
      EXPECT_EQ(names(), dim == 8 ? "main merge" : "pack pack main merge");
      const CudaStep& main = all[all.size() - 2];
      EXPECT_EQ(main.blocks, std::min<Int64>(vocab, 8)) << "a segment has a leaf";
      EXPECT_EQ(main.args.hidden_pitch, dim == 8 ? 0 : round_up(dim, 8)) << "one row has no stride";
    }
  }
}

// With one row of tiles nothing is saved by listing them.
TEST_F(LaunchCudaForwardTest, ActiveRowsAreListedWhereTheyMayBeFewerTiles) {
  for (const DType dtype : {DType::bf16, DType::f32}) {
    const Int64 tile_rows = dtype == DType::f32 ? 64 : 256;
    for (const bool has_mask : {false, true}) {
      CudaCase wanted{.rows = tile_rows, .dtype = dtype, .has_mask = has_mask};
      if (!has_mask) wanted.ignore_index = -100;
      EXPECT_EQ(run(wanted).at(0).args.rows, nullptr);
      EXPECT_EQ(names(), "main merge");
      ++wanted.rows;
      EXPECT_NE(run(wanted).at(0).args.rows, nullptr);
      EXPECT_EQ(names(), "rows main merge");
    }
  }
}

TEST_F(LaunchCudaForwardTest, NoRowsIsNoLaunch) {
  EXPECT_TRUE(run({.rows = 0}).empty());
  EXPECT_TRUE(run({.rows = 0, .dim = 7, .has_mask = true, .ignore_index = -100}).empty());
  EXPECT_TRUE(workspace_.requests.empty());
}

TEST_F(LaunchCudaForwardTest, AWorkspaceThatFailsLaunchesNothing) {
  workspace_.fails = true;
  EXPECT_THROW(run(CudaCase{}), DriverError);
  EXPECT_TRUE(fake_.launches.empty());
  EXPECT_TRUE(fake_.contexts()->empty());
}

TEST_F(LaunchCudaForwardTest, ARefusedStepNamesItsEntryAndEndsTheCall) {
  fake_.fail_call = "cuLaunchKernel";
  fake_.fail_at = 2;
  fake_.fail_code = runtime::cuda::result::invalid_value;
  const auto text = what<DriverError>([&] { run(CudaCase{.ignore_index = -100}); });
  EXPECT_NE(text.find("rlk_linear_logp_fwd_main of 32x1x1 blocks"), text.npos) << text;
  EXPECT_EQ(names(), "rows");
}

// What an earlier call's kernels found is raised once, in place of the next call.
TEST_F(LaunchCudaForwardTest, AnEarlierCallsErrorIsRaisedOnce) {
  const DeviceError* const error = run({})[0].args.error;
  leave_error("linear_logp").state = DeviceError::kBeingWritten;
  EXPECT_EQ(run({}).size(), 2u) << "another word, still being written, is left for later";
  for (const auto pass : {jit::Pass::bwd, jit::Pass::fwd}) {
    EXPECT_EQ(&leave_error("linear_logp"), error) << "what the kernels are given";
    EXPECT_EQ(what<InvalidArgument>([&] { run(CudaCase{.pass = pass}); }),
              "linear_logp: target: expected ids in [0, 7), got 99 in row 3");
    EXPECT_TRUE(fake_.launches.empty());
    EXPECT_EQ(run({}).size(), 2u);
  }
}

}  // namespace
}  // namespace rlk::test
