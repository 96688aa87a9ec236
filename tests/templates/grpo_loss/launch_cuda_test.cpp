// SPDX-License-Identifier: Apache-2.0
// The launch of grpo_loss: arguments, rows of a multiprocessor, what is kept of them, workspace.
#include "templates/grpo_loss/cuda_args.h"
#include "templates/grpo_loss/op.hpp"
#include "tests/templates/common/launch_fixture.hpp"

namespace rlk::test {
namespace {

constexpr Int64 k_num_sms = 132;  // of the fake card
constexpr int k_most_shared = 227 << 10;

using Step = LaunchedStep<GrpoLossCudaArgs>;

class LaunchGrpoLossTest : public LaunchFixture<GrpoLossCudaArgs> {
 protected:
  GrpoLossCall make(Int64 sequences, Int64 length, Int64 vocab, DType dtype = DType::bf16) {
    GrpoLossCall call;
    call.op = &templates::grpo_loss_op;
    call.pass = jit::Pass::bwd;
    call.device = {Device::Kind::cuda, k_device};
    call.stream = k_stream;
    call.workspace = &workspace_;
    const std::vector<Int64> tokens{sequences, length};
    call.logits = tensor(dtype, {sequences, length, vocab});
    call.grad_logits = tensor(dtype, {sequences, length, vocab});
    call.target = tensor(DType::i64, tokens);
    call.log_prob = tensor(DType::f32, tokens);
    call.row_max = tensor(DType::f32, tokens);
    call.row_log_sum = tensor(DType::f32, tokens);
    PpoLossCall& loss = call.loss;
    loss.log_probs = loss.old_log_probs = tensor(DType::f32, tokens);
    loss.advantages = tensor(DType::f32, {sequences});
    loss.sequence_weight = tensor(DType::f32, {sequences});
    loss.sequence_kl_weight = tensor(DType::f32, {sequences});
    loss.sequence_statistic = tensor(DType::f32, {sequences});
    return call;
  }

  std::vector<Step> run(const GrpoLossCall& call, bool validate_sync = false) {
    forget();
    check_grpo_loss(call);
    LoadedKernel kernel =
        load_entries(templates::grpo_loss_op.entries(jit::Pass::bwd, Backend::cuda));
    kernel.target = Target::sm_90a;
    launch_grpo_loss(kernel, call, {.validate_sync = validate_sync});
    if (validate_sync) return steps();
    expect_sound(kernel.target);
    const PpoLossCall& loss = call.loss;
    expect_given({&call.logits, &call.grad_logits, &call.target, &call.log_prob, &call.row_max,
                  &call.row_log_sum, &loss.old_log_probs, &loss.ref_log_probs, &loss.advantages,
                  &loss.sequence_weight, &loss.sequence_kl_weight, &loss.sequence_statistic,
                  &loss.cu_seqlens});
    WorkspaceArrays arrays;
    for (const Step& step : steps()) {
      if (step.name == "pack") arrays.add("copy", step.copy.to, 8192 * 8);
      if (step.name == "main") arrays.add("grad", step.args.loss.grad, step.args.num_rows * 4);
    }
    arrays.expect_fill(workspace_);
    return steps();
  }
};

TEST_F(LaunchGrpoLossTest, ACallIsOneStep) {
  GrpoLossCall call = make(32, 256, 131072);
  call.softcap = 30.1;
  call.logit_scale = 0.5;
  call.ignore_index = 7;
  call.loss.choices.kl = kKl3;
  call.loss.values.kl_coef = 0.04f;
  call.loss.ref_log_probs = tensor(DType::f32, {32, 256});
  const auto all = run(call);
  ASSERT_EQ(names(), "main");
  EXPECT_EQ(all[0].blocks, 8192u) << "a row each";
  const GrpoLossCudaArgs& args = all[0].args;
  EXPECT_EQ(args.softcap, 30.1f);
  EXPECT_EQ(args.logit_scale, 0.5f);
  EXPECT_EQ(args.has_ignore_index, 1);
  EXPECT_EQ(args.ignore_index, 7);
  EXPECT_EQ(args.entropy, nullptr);
  EXPECT_NE(args.error, nullptr);
  EXPECT_EQ(args.num_resident, k_num_sms);
  EXPECT_EQ(args.loss.num_tokens, 8192);
  EXPECT_EQ(args.loss.num_sequences, 32);
  EXPECT_EQ(args.loss.length, 256);
  EXPECT_EQ(args.loss.rollout_log_probs, nullptr);
  EXPECT_EQ(args.loss.advantage_is_of_sequence, 1);
  EXPECT_EQ(args.loss.choices.kl, kKl3);
  EXPECT_EQ(args.loss.values.kl_coef, 0.04f);
  // The rows' upstream gradient is what the kernel makes of their tokens.
  EXPECT_EQ(args.grad.data, args.loss.grad);
  EXPECT_EQ(args.grad.stride, 1);
}

TEST_F(LaunchGrpoLossTest, PackedSequencesAndRowsThatNeedACopy) {
  GrpoLossCall call = make(1, 8192, 1000);
  call.logits = tensor(DType::f16, {8192, 1000});
  call.grad_logits = tensor(DType::f16, {8192, 1000});
  call.target = view(tensor(DType::i32, {8192}), {2});
  call.loss.log_probs = call.loss.old_log_probs = tensor(DType::f32, {8192});
  call.loss.cu_seqlens = tensor(DType::i64, {6});
  const auto packed = run(call);
  ASSERT_EQ(names(), "main");
  EXPECT_EQ(packed[0].args.loss.num_sequences, 5);
  EXPECT_EQ(packed[0].args.target.stride, 2);

  call = make(32, 256, 1000);
  call.target = view(tensor(DType::i64, {32, 256}), {1, 32});
  const auto all = run(call);
  ASSERT_EQ(names(), "pack main");
  expect_copied(all[1].args.target, all[0].copy, call.target);
}

// A multiprocessor has as many rows at once as it keeps whole, and of a longer one what fits.
TEST_F(LaunchGrpoLossTest, RowsOfAMultiprocessor) {
  struct Wanted {
    Int64 vocab;
    int element_bytes, blocks, threads;
    bool is_whole;
  };
  for (const auto& [vocab, element_bytes, blocks, threads, is_whole] :
       {Wanted{1, 2, 4, 192, true}, Wanted{8000, 2, 4, 192, true}, Wanted{32768, 2, 3, 256, true},
        Wanted{50257, 2, 2, 384, true}, Wanted{100000, 2, 1, 768, true},
        Wanted{131072, 2, 1, 768, false}, Wanted{50257, 4, 1, 768, true},
        Wanted{786432, 4, 1, 768, false}}) {
    SCOPED_TRACE(testing::Message() << vocab << " of " << element_bytes);
    const GrpoLossRows rows = grpo_loss_rows(vocab, element_bytes, k_most_shared);
    const Int64 leaves = logp_num_leaves(vocab);
    EXPECT_EQ(rows.blocks, blocks);
    EXPECT_EQ(rows.threads, threads);
    EXPECT_EQ(rows.num_kept == leaves, is_whole);
    EXPECT_EQ(rows.shared_bytes,
              grpo_fixed_bytes(leaves) + rows.num_kept * kLogpLeaf * element_bytes);
    EXPECT_LE(rows.blocks * (rows.shared_bytes + 1024), k_most_shared + 1024);
    if (!is_whole) {
      EXPECT_GT(rows.shared_bytes + kLogpLeaf * element_bytes, k_most_shared) << "it is full";
    }
  }
  const GrpoLossRows rows = grpo_loss_rows(131072, 2, k_most_shared);
  EXPECT_EQ(rows.num_kept, 590) << "of 683";
}

// On every target, at the most columns too.
TEST_F(LaunchGrpoLossTest, SharedMemoryStaysWithinTheTarget) {
  for (const Target target : cuda_targets()) {
    for (const Int64 type : {1, 2}) {
      for (const Int64 vocab : {Int64{-1}, Int64{1}, Int64{50257}, Int64{786432}}) {
        const int bytes = grpo_loss_shared_bytes(
            {&templates::grpo_loss_op, jit::Pass::bwd, target, {type, vocab, 0, 0}});
        EXPECT_LE(bytes, shared_limit_bytes(target)) << name(target) << ' ' << vocab;
        EXPECT_GT(bytes, 0);
      }
    }
  }
}

TEST_F(LaunchGrpoLossTest, FewRowsAndLongOnesAreLeftToTheParts) {
  const auto fits = [&](Int64 rows, Int64 vocab) {
    return grpo_loss_fits(tensor(DType::bf16, {rows, vocab}), k_num_sms);
  };
  EXPECT_TRUE(fits(16 * k_num_sms, 131072));
  EXPECT_FALSE(fits(16 * k_num_sms - 1, 131072));
  EXPECT_TRUE(fits(16 * k_num_sms, kLogpMostSharedLeaves * 192));
  EXPECT_FALSE(fits(16 * k_num_sms, kLogpMostSharedLeaves * 192 + 1));
  EXPECT_FALSE(fits(0, 131072));
  EXPECT_FALSE(fits(131072, 0));
  EXPECT_FALSE(grpo_loss_fits(tensor(DType::bf16, {}), k_num_sms));
  EXPECT_EQ(what<InvalidArgument>([&] { check_grpo_loss(make(1, 1, 786433)); }),
            "grpo_loss: logits: expected at most 786432 columns, got [1, 1, 786433]");
}

TEST_F(LaunchGrpoLossTest, AWorkspaceThatFailsLaunchesNothing) {
  workspace_.fails = true;
  EXPECT_THROW(run(make(32, 256, 1000)), DriverError);
  EXPECT_TRUE(fake_.launches.empty());
  EXPECT_TRUE(fake_.contexts()->empty());
}

TEST_F(LaunchGrpoLossTest, AnEarlierCallsErrorIsRaisedOnce) {
  leave_error("logp");
  const GrpoLossCall call = make(32, 256, 1000);
  EXPECT_EQ(what<InvalidArgument>([&] { run(call); }),
            "logp: target: expected ids in [0, 7), got 99 in row 3");
  EXPECT_TRUE(fake_.launches.empty());
  EXPECT_EQ(run(call).size(), 1u);
}

}  // namespace
}  // namespace rlk::test
