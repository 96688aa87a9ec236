// SPDX-License-Identifier: Apache-2.0
// The steps of logp's launch: order, grids, arguments, parts of rows, workspace, errors.
#include "tests/templates/logp/launch_cuda_fixture.hpp"

#include <numeric>

namespace rlk::test {
namespace {

constexpr auto k_bwd = jit::Pass::bwd;

TEST_F(LaunchLogpTest, AForwardOfManyRowsIsOneStep) {
  const auto all = run(LogpCase{});
  ASSERT_EQ(names(), "main");
  EXPECT_EQ(all[0].blocks, 1000u) << "a row each";
  EXPECT_EQ(all[0].shared_bytes, 8u * 8) << "two floats a leaf";
  const LogpCudaArgs& args = all[0].args;
  EXPECT_EQ(args.part_leaves, 8);
  EXPECT_EQ(args.num_parts, 1);
  EXPECT_EQ(args.rows, nullptr) << "each row is asked in its turn";
  EXPECT_EQ(args.softcap, 0.0f) << "none";
  EXPECT_EQ(args.logit_scale, 1.0f);
  EXPECT_NE(args.error, nullptr);
  EXPECT_STREQ(args.op, "logp");
  EXPECT_TRUE(workspace_.requests.empty());
  EXPECT_TRUE(fake_.memsets.empty());
}

TEST_F(LaunchLogpTest, OptionsReachTheKernel) {
  LogpCall call = make({.has_mask = true,
                        .has_temperature = true,
                        .ignore_index = 7,
                        .softcap = 30.1,
                        .logit_scale = 0.0625001,
                        .has_entropy = true,
                        .has_lse = true,
                        .has_stats = true});
  call.temperature = view(tensor(DType::bf16, {1000}), {3});
  call.target.dtype = DType::u16;
  const auto all = run(call);
  ASSERT_EQ(names(), "main") << "a mask asks for no step of its own";
  const LogpCudaArgs& args = all[0].args;
  expect_array(args.temperature, call.temperature);
  expect_array(args.mask, call.mask);
  expect_array(args.target, call.target);
  EXPECT_EQ(args.has_ignore_index, 1);
  EXPECT_EQ(args.ignore_index, 7);
  EXPECT_EQ(args.softcap, 30.1f);
  EXPECT_EQ(args.inverse_softcap, 1.0f / 30.1f);
  EXPECT_EQ(args.logit_scale, 0.0625001f);
  EXPECT_EQ(all[0].shared_bytes, 8u * 24) << "of a leaf: a third float, and three of statistics";
  call.temperature = Tensor();
  call.temperature.value = 0.3;
  EXPECT_EQ(run(call)[0].args.inverse_temperature, 1.0f / static_cast<float>(0.3));
}

TEST_F(LaunchLogpTest, RowMaxAndLogSumMayBeAbsent) {
  LogpCall call = make({});
  call.row_max = call.row_log_sum = {};
  const auto all = run(call);
  EXPECT_EQ(all[0].args.row_max, nullptr);
  EXPECT_EQ(all[0].args.row_log_sum, nullptr);
}

TEST_F(LaunchLogpTest, FewRowsAreCutIntoPartsThatAStepMerges) {
  for (const bool has_entropy : {false, true}) {
    const bool has_stats = !has_entropy;
    const auto all =
        run({.rows = 4, .vocab = 152064, .has_entropy = has_entropy, .has_stats = has_stats});
    ASSERT_EQ(names(), "main merge");
    for (const LogpStep& step : all) {
      EXPECT_EQ(step.shared_bytes, 0u);
      EXPECT_EQ(step.args.part_leaves, 32) << "of 792";
      EXPECT_EQ(step.args.num_parts, 25);
      EXPECT_EQ(step.args.partial_moment != nullptr, has_entropy);
      EXPECT_EQ(step.args.partial_stats.argmax != nullptr, has_stats);
    }
    EXPECT_EQ(all[0].blocks, 4u * 25);
    EXPECT_EQ(all[1].blocks, 4u);
  }
}

// The parts of a row cover its leaves, none is empty, and the fewer the rows the more the parts.
TEST_F(LaunchLogpTest, PartsCoverEveryRow) {
  for (const auto pass : {jit::Pass::fwd, k_bwd}) {
    for (const Int64 vocab : {1, 192, 193, 32 * 192, 32 * 192 + 1, 50257, 152064, 2'000'003}) {
      Int64 last = 1 << 30;
      for (const Int64 rows : {1, 2, 7, 66, 527, 528, 529, 4096, 1'000'000}) {
        SCOPED_TRACE(testing::Message() << rows << " x " << vocab);
        const auto all = run({.rows = rows, .vocab = vocab, .pass = pass});
        const LogpCudaArgs& args = all[0].args;
        const Int64 leaves = pass == k_bwd ? ceil_div(vocab, kLogpLeaf) : logp_num_leaves(vocab);
        EXPECT_GE(args.part_leaves * args.num_parts, leaves);
        EXPECT_LT(args.part_leaves * (args.num_parts - 1), leaves);
        EXPECT_LE(args.num_parts, last);
        last = args.num_parts;
        // Of what a block reads, or what its shared memory holds.
        const Int64 most = pass == k_bwd ? 128 : kLogpMostSharedLeaves;
        EXPECT_LE(args.part_leaves, most);
        if (rows < 4 * k_num_sms) {
          // Blocks for the whole card, as far as a part has what a block reads at once.
          EXPECT_GE(args.num_parts, std::min(4 * k_num_sms / rows, leaves / 64));
        } else {
          EXPECT_EQ(args.num_parts == 1, leaves <= most);
        }
        EXPECT_EQ(Int64{all[0].blocks}, rows * args.num_parts);
        const bool merges = pass == jit::Pass::fwd && args.num_parts > 1;
        EXPECT_EQ(names(), merges ? "main merge" : "main");
        EXPECT_EQ(workspace_.requests.empty(), !merges);
      }
    }
  }
}

// What does not fit a block's shared memory goes through the workspace, however many the rows.
TEST_F(LaunchLogpTest, SharedMemoryHoldsSoManyLeaves) {
  const Int64 most = kLogpMostSharedLeaves;
  auto all = run({.rows = 4000, .vocab = most * 192, .has_entropy = true, .has_stats = true});
  EXPECT_EQ(names(), "main");
  EXPECT_EQ(all[0].shared_bytes, most * 24);
  const jit::Specialization generic =
      jit::Specialization{&templates::logp_op, jit::Pass::fwd, Target::sm_86, {1}}.generic();
  EXPECT_EQ(logp_shared_bytes(generic), most * 24) << "what the generic kernel may ask for";
  EXPECT_LE(most * 24, shared_limit_bytes(Target::sm_86));
  all = run({.rows = 4000, .vocab = most * 192 + 1, .has_entropy = true});
  EXPECT_EQ(names(), "main merge");
  EXPECT_EQ(all[0].shared_bytes, 0u);
  EXPECT_EQ(all[0].args.num_parts, 2);
}

// More blocks than a grid takes are left to the kernels' own loop.
TEST_F(LaunchLogpTest, AGridStaysWithinItsBounds) {
  const Int64 rows = Int64{3} << 30;
  auto all = run({.rows = rows, .vocab = 8});
  EXPECT_EQ(all[0].blocks, 1u << 30);
  EXPECT_EQ(all[0].args.num_rows, rows);
  all = run({.rows = rows, .vocab = 8, .pass = k_bwd});
  EXPECT_EQ(all[0].blocks, 1u << 30);
}

TEST_F(LaunchLogpTest, ABackwardMayBeLeftOutOnTheDevice) {
  LogpCall call = make({.pass = k_bwd});
  EXPECT_EQ(run(call)[0].args.unless_one, nullptr);
  call.unless_one = tensor(DType::f32, {});
  EXPECT_EQ(run(call)[0].args.unless_one, call.unless_one.data);
}

TEST_F(LaunchLogpTest, ABackwardIsOneStep) {
  const LogpCase wanted{.pass = k_bwd, .softcap = 30.0, .logit_scale = 0.5, .has_entropy = true};
  LogpCall call = make(wanted);
  call.grad_output = {};
  call.grad_entropy = view(tensor(DType::bf16, {1000}), {3});
  call.grad_lse = view(tensor(DType::f64, {1000}), {0});
  const auto all = run(call);
  ASSERT_EQ(names(), "main");
  EXPECT_EQ(all[0].blocks, 1000u);
  EXPECT_EQ(all[0].shared_bytes, 0u);
  const LogpCudaArgs& args = all[0].args;
  EXPECT_EQ(args.logp, nullptr);
  EXPECT_EQ(args.softcap, 30.0f);
  EXPECT_EQ(args.logit_scale, 0.5f);
  EXPECT_EQ(args.grad.data, nullptr);
  expect_array(args.grad_entropy, call.grad_entropy);
  expect_array(args.grad_lse, call.grad_lse);
  EXPECT_TRUE(workspace_.requests.empty());
  EXPECT_TRUE(fake_.memsets.empty()) << "the step writes inactive rows too";
}

TEST_F(LaunchLogpTest, TheGradientMayLieOverTheLogits) {
  LogpCall call = make({.pass = k_bwd});
  call.in_place = true;
  call.grad_logits = call.logits = view(tensor(DType::bf16, {1000, 1000}), {1, 1001});
  const auto all = run(call);
  ASSERT_EQ(names(), "main");
  EXPECT_EQ(all[0].args.grad_logits.data, all[0].args.logits.data);
  EXPECT_EQ(all[0].args.grad_logits.col_stride, 1001);
  EXPECT_EQ(all[0].args.grad_logits.strides[0], 1);
}

TEST_F(LaunchLogpTest, NoRowsIsNoLaunch) {
  for (const auto pass : {jit::Pass::fwd, k_bwd}) {
    EXPECT_TRUE(run({.rows = 0, .pass = pass, .has_mask = true, .ignore_index = -100}).empty());
    EXPECT_TRUE(workspace_.requests.empty());
  }
}

TEST_F(LaunchLogpTest, AWorkspaceThatFailsLaunchesNothing) {
  workspace_.fails = true;
  EXPECT_THROW(run({.rows = 4, .vocab = 152064}), DriverError);
  EXPECT_TRUE(fake_.launches.empty());
  EXPECT_TRUE(fake_.contexts()->empty());
}

TEST_F(LaunchLogpTest, ARefusedStepNamesItsEntryAndEndsTheCall) {
  const LogpCall call = make({.rows = 4, .vocab = 152064});
  fake_.fail_call = "cuLaunchKernel";
  fake_.fail_at = 1;
  fake_.fail_code = runtime::cuda::result::invalid_value;
  const auto text = what<DriverError>([&] { run(call); });
  EXPECT_NE(text.find("rlk_logp_fwd_main of 100x1x1 blocks"), text.npos) << text;
  EXPECT_EQ(names(), "");
  EXPECT_TRUE(fake_.contexts()->empty());
}

// What an earlier call's kernels found is raised once, in place of the next call.
TEST_F(LaunchLogpTest, AnEarlierCallsErrorIsRaisedOnce) {
  const DeviceError* const error = run(LogpCase{})[0].args.error;
  for (const auto pass : {k_bwd, jit::Pass::fwd}) {
    EXPECT_EQ(&leave_error("logp"), error) << "what the kernels are given";
    EXPECT_EQ(what<InvalidArgument>([&] { run(LogpCase{.pass = pass}); }),
              "logp: target: expected ids in [0, 7), got 99 in row 3");
    EXPECT_TRUE(fake_.launches.empty());
    EXPECT_EQ(run(LogpCase{}).size(), 1u);
  }
}

// RLK_VALIDATE=sync: a look at the values before the launch, in the CPU's words.
TEST_F(LaunchLogpTest, ValuesAreLookedAtIfAsked) {
  std::vector<Int64> target(5);
  std::iota(target.begin(), target.end(), 3);
  LogpCall call = make({.rows = 5, .vocab = 7});
  call.target.data = target.data();
  EXPECT_EQ(run(call).size(), 1u) << "the kernel finds it";
  EXPECT_EQ(what<InvalidArgument>([&] { run(call, true); }),
            "logp: target: expected ids in [0, 7), got 7 in row 4");
  EXPECT_TRUE(fake_.launches.empty());
  call.ignore_index = 7;
  EXPECT_EQ(run(call, true).size(), 1u);
}

}  // namespace
}  // namespace rlk::test
