// SPDX-License-Identifier: Apache-2.0
// What a launch of ppo_loss asks of the driver: order of steps, grids, arguments, copies,
// workspace, errors. No memory is behind the tensors.
#include "templates/ppo_loss/op.hpp"
#include "tests/templates/common/launch_fixture.hpp"

#include <vector>

namespace rlk::test {
namespace {

using PpoLossStep = LaunchedStep<PpoLossArgs, PpoLossPack>;

class LaunchPpoLossTest : public LaunchFixture<PpoLossArgs, PpoLossPack> {
 protected:
  static constexpr Int64 k_num_sms = 132;  // of the fake card

  LaunchPpoLossTest() {
    fake_.argument_bytes = [](const std::string& kernel) {
      if (kernel == "rlk_ppo_loss_bwd_main") return sizeof(PpoLossBackwardArgs);
      return kernel.ends_with("_pack") ? sizeof(PpoLossPack) : sizeof(PpoLossArgs);
    };
  }

  // A padded batch of plain ppo, every array dense.
  PpoLossCall make(std::vector<Int64> shape) {
    PpoLossCall call;
    call.op = &templates::ppo_loss_op;
    call.device = {Device::Kind::cuda, k_device};
    call.stream = k_stream;
    call.workspace = &workspace_;
    for (Tensor* each : {&call.log_probs, &call.old_log_probs, &call.advantages, &call.grad}) {
      *each = tensor(DType::f32, shape);
    }
    call.loss = tensor(DType::f32, {});
    call.counts = tensor(DType::i64, {kNumCounts});
    call.float_metrics = tensor(DType::f32, {kNumFloatMetrics});
    call.exact = tensor(DType::i64, {kNumSums, 2});
    return call;
  }

  // Everything that a call may have, in no switch's way.
  PpoLossCall make_full(const std::vector<Int64>& shape) {
    PpoLossCall call = make(shape);
    for (Tensor* each : {&call.rollout_log_probs, &call.ref_log_probs, &call.entropy, &call.weights,
                         &call.grad_entropy}) {
      *each = tensor(DType::f32, shape);
    }
    call.mask = tensor(DType::boolean, shape);
    call.choices.correction = kTruncate;
    call.choices.kl = kKl3;
    call.choices.entropy = 1;
    return call;
  }

  // Runs it alone: what came before is forgotten.
  std::vector<PpoLossStep> run(const PpoLossCall& call) {
    forget();
    LoadedKernel kernel = load_entries(ppo_loss_entries(call.pass, Backend::cuda));
    kernel.target = Target::sm_90a;
    launch_ppo_loss(kernel, call, {});
    expect_sound(kernel.target);
    EXPECT_TRUE(fake_.memsets.empty());
    if (call.pass == jit::Pass::bwd) {
      expect_given({&call.saved, &call.upstream, &call.gradient});
      EXPECT_TRUE(workspace_.requests.empty());
      return steps();
    }
    if (call.partials.present()) {
      expect_given({&call.partials, &call.totals, &call.loss, &call.counts, &call.float_metrics,
                    &call.exact});
      EXPECT_TRUE(workspace_.requests.empty());
      return steps();
    }
    const Tensor absent;
    const auto read_with = [&](Int64 choice, const Tensor& tensor) {
      return choice ? &tensor : &absent;
    };
    expect_given({&call.log_probs,
                  &call.old_log_probs,
                  &call.advantages,
                  &call.mask,
                  &call.weights,
                  &call.cu_seqlens,
                  &call.group_starts,
                  &call.global_sequences,
                  &call.loss,
                  &call.grad,
                  &call.grad_entropy,
                  &call.counts,
                  &call.float_metrics,
                  &call.exact,
                  &call.sequence_weight,
                  &call.sequence_kl_weight,
                  &call.sequence_statistic,
                  &call.own_pieces,
                  &call.pieces,
                  &call.own_slopes,
                  &call.slopes,
                  &call.totals,
                  &call.own_total,
                  read_with(reads_rollout(call.choices), call.rollout_log_probs),
                  read_with(call.choices.correction == kGiven, call.importance_weights),
                  read_with(call.choices.kl, call.ref_log_probs),
                  read_with(call.choices.entropy, call.entropy)});
    expect_sound_workspace(call, steps());
    return steps();
  }

  void expect_sound_workspace(const PpoLossCall& call, const std::vector<PpoLossStep>& all) {
    WorkspaceArrays arrays;
    for (const PpoLossStep& step : all) {
      if (step.name == "pack") {
        const PpoLossPack& pack = step.copy;
        const Int64 bytes[] = {4, 1, 8};  // by kind
        arrays.add("pack", pack.to, pack.rows * pack.cols * bytes[pack.to_kind]);
        continue;
      }
      const PpoLossArgs& args = step.args;
      EXPECT_EQ(std::memcmp(&args.choices, &call.choices, sizeof args.choices), 0);
      EXPECT_EQ(std::memcmp(&args.values, &call.values, sizeof args.values), 0);
      const Int64 sequences = args.num_sequences;
      const auto add = [&](const char* name, const void* data, const Tensor& given, Int64 bytes) {
        if (!given.present()) arrays.add(name, data, bytes);
      };
      add("sequence_tokens", args.sequence_tokens, {}, sequences * 8);
      add("sequence_weight", args.sequence_weight, call.sequence_weight, sequences * 4);
      add("sequence_kl_weight", args.sequence_kl_weight, call.sequence_kl_weight, sequences * 4);
      add("sequence_log_ratio", args.sequence_log_ratio, {}, sequences * 4);
      add("sequence_statistic", args.sequence_statistic, call.sequence_statistic, sequences * 4);
      add("sequence_advantage", args.sequence_advantage, {}, sequences * 4);
      add("sequence_grad", args.sequence_grad, {}, sequences * 4);
      add("counts", args.counts, call.counts, kNumCounts * 8);
      add("partials", args.partials, {},
          std::max<Int64>(args.num_items, 1) * static_cast<Int64>(sizeof(PpoLossPartial)));
    }
    arrays.expect_fill(workspace_);
  }
};

TEST_F(LaunchPpoLossTest, AForwardIsFourSteps) {
  PpoLossCall call = make({8, 512});
  call.mask = tensor(DType::boolean, {8, 512});
  call.values.ratio_high = 1.28f;
  call.reduction = kSequenceMean;
  call.kl_reduction = kTokenSum;
  call.length = 99;
  const auto all = run(call);
  ASSERT_EQ(names(), "count weigh main finish");
  const auto expect_dims = [&](int step, unsigned blocks, unsigned threads) {
    EXPECT_EQ(all[step].blocks, blocks) << all[step].name;
    EXPECT_EQ(all[step].threads, threads) << all[step].name;
    EXPECT_EQ(all[step].shared_bytes, 0u) << all[step].name;
  };
  expect_dims(0, 8, 512);
  expect_dims(1, 1, 1024);
  expect_dims(2, 16, 256);
  expect_dims(3, 1, 1024);
  for (const PpoLossStep& step : all) {
    const PpoLossArgs& args = step.args;
    EXPECT_EQ(args.num_tokens, 8 * 512);
    EXPECT_EQ(args.num_sequences, 8);
    EXPECT_EQ(args.length, 512);
    EXPECT_EQ(args.num_items, 16);
    EXPECT_EQ(args.reductions.policy, kSequenceMean);
    EXPECT_EQ(args.reductions.kl, kTokenSum);
    EXPECT_EQ(args.reductions.length, 99);
    EXPECT_EQ(args.group_size, 1);
    EXPECT_EQ(args.num_groups, 8) << "each sequence is one";
  }
}

TEST_F(LaunchPpoLossTest, ADerivativeThroughTheSequencesMeanIsAStepOfItsOwn) {
  PpoLossCall call = make({8, 512});
  call.choices.ratio = kSequenceTokenRatio;
  run(call);
  EXPECT_EQ(names(), "count weigh main finish");
  call.choices.ratio = kSequenceRatio;
  const auto all = run(call);
  ASSERT_EQ(names(), "count weigh slope main finish");
  EXPECT_EQ(all[2].blocks, 8u);
  EXPECT_EQ(all[2].threads, 256u);
}

TEST_F(LaunchPpoLossTest, OverRanksACallEndsWhereOthersAreAsked) {
  PpoLossCall call = make({8, 512});
  call.choices.ratio = kSequenceRatio;
  call.own_pieces = tensor(DType::i64, {8, k_piece_words});
  run(call);
  EXPECT_EQ(names(), "count");

  call.own_pieces = {};
  call.pieces = tensor(DType::i64, {2, 8, k_piece_words});
  call.totals = tensor(DType::i64, {kNumTotals});
  call.own_slopes = tensor(DType::i64, {8, k_piece_words});
  EXPECT_EQ(run(call).back().args.num_pieces, 2);
  EXPECT_EQ(names(), "count weigh slope");

  call.own_slopes = {};
  call.slopes = tensor(DType::i64, {2, 8, k_piece_words});
  call.own_total = tensor(DType::i64, {k_partial_words});
  run(call);
  EXPECT_EQ(names(), "count weigh slope main finish");

  call.own_total = {};
  call.partials = tensor(DType::i64, {4, k_partial_words});
  const PpoLossArgs args = run(call).back().args;
  EXPECT_EQ(names(), "finish");
  EXPECT_EQ(args.num_items, 4);
  EXPECT_EQ(static_cast<void*>(args.partials), call.partials.data);
}

// A rank may have no sequences: where its pieces would be there is no memory.
TEST_F(LaunchPpoLossTest, OverRanksACallEndsWithoutSequencesToo) {
  PpoLossCall call = make({0, 512});
  call.own_pieces = tensor(DType::i64, {0, k_piece_words});
  call.own_pieces.data = nullptr;
  LoadedKernel kernel = load_entries(ppo_loss_entries(call.pass, Backend::cuda));
  kernel.target = Target::sm_90a;
  launch_ppo_loss(kernel, call, {});
  EXPECT_EQ(names(), "");
}

// An array is looked at with its switch alone, whatever it is.
TEST_F(LaunchPpoLossTest, WhatASwitchReadsIsPassedWithItAlone) {
  PpoLossCall call = make_full({8, 512});
  call.importance_weights = tensor(DType::f32, {8, 512});
  for (Tensor* each :
       {&call.rollout_log_probs, &call.ref_log_probs, &call.entropy, &call.importance_weights}) {
    *each = view(*each, {1, 8});  // else it would be copied
  }
  call.choices = {};
  const PpoLossArgs off = run(call).back().args;
  EXPECT_EQ(names(), "count weigh main finish");
  EXPECT_EQ(off.rollout_log_probs, nullptr);
  EXPECT_EQ(off.ref_log_probs, nullptr);
  EXPECT_EQ(off.entropy, nullptr);
  EXPECT_EQ(off.importance_weights, nullptr);

  call = make_full({8, 512});
  call.choices.correction = kGiven;
  call.importance_weights = tensor(DType::f32, {8, 1});
  const PpoLossArgs given = run(call).back().args;
  EXPECT_EQ(given.importance_weights, call.importance_weights.data);
  EXPECT_EQ(given.importance_is_of_sequence, 1);
  EXPECT_EQ(given.rollout_log_probs, nullptr);
  call.choices.kl_weight = kRolloutRatio;
  EXPECT_EQ(run(call).back().args.rollout_log_probs, call.rollout_log_probs.data);

  run(make_full({8, 512}));
  EXPECT_EQ(names(), "count weigh main finish");
}

TEST_F(LaunchPpoLossTest, AdvantagesAndWeightsMayBeOneASequence) {
  for (const auto& shape : std::vector<std::vector<Int64>>{{8}, {8, 1}}) {
    PpoLossCall call = make({8, 512});
    call.advantages = tensor(DType::f32, shape);
    call.weights = tensor(DType::f32, shape);
    const PpoLossArgs args = run(call).back().args;
    EXPECT_EQ(names(), "count weigh main finish");
    EXPECT_EQ(args.advantage_is_of_sequence, 1);
    EXPECT_EQ(args.weight_is_of_sequence, 1);
  }
}

TEST_F(LaunchPpoLossTest, PackedSequencesGroupsAndGlobalCounts) {
  PpoLossCall call = make({1000});
  call.cu_seqlens = tensor(DType::i64, {7});
  call.group_starts = tensor(DType::i64, {3});
  call.global_tokens.value = 12345;
  call.global_sequences = tensor(DType::i64, {1});
  auto all = run(call);
  ASSERT_EQ(names(), "count weigh main finish");
  EXPECT_EQ(all[0].blocks, 6u);
  const PpoLossArgs& args = all[0].args;
  EXPECT_EQ(args.num_sequences, 6);
  EXPECT_EQ(args.num_groups, 2);
  EXPECT_EQ(args.reductions.tokens.at, nullptr);
  EXPECT_EQ(args.reductions.tokens.value, 12345);
  EXPECT_EQ(args.reductions.sequences.at, call.global_sequences.data) << "read there";
  EXPECT_EQ(args.reductions.groups.at, nullptr);
  EXPECT_EQ(args.reductions.groups.value, 0);

  // Without starts it is one sequence.
  call = make({1000});
  all = run(call);
  EXPECT_EQ(all[0].blocks, 1u);
  EXPECT_EQ(all[0].args.num_sequences, 1);
  EXPECT_EQ(all[0].args.length, 1000);
  EXPECT_EQ(all[0].args.starts, nullptr);

  call = make({8, 512});
  call.group_size = 4;
  EXPECT_EQ(run(call)[0].args.num_groups, 2);
  EXPECT_EQ(run(call)[0].args.group_size, 4);
}

// As many items as blocks run at once, and more only where a thread would have too many tokens.
TEST_F(LaunchPpoLossTest, ItemsFillTheCardOnce) {
  for (const Int64 length : {1, 255, 256, 257, 4096, 65536, 1 << 20}) {
    const auto all = run(make({64, length}));
    const Int64 tiles = ceil_div(64 * length, 256);
    EXPECT_EQ(all[2].args.num_items, std::min(tiles, 3 * k_num_sms)) << length;
    EXPECT_EQ(Int64{all[2].blocks}, all[2].args.num_items) << length;
  }
  const auto all = run(make({1 << 17, 1 << 17}));
  EXPECT_EQ(all[0].blocks, 65535u) << "the kernel's own loop takes the rest";
  const Int64 items = all[2].args.num_items;
  EXPECT_GE(items * kPpoLossMostTurns * 256, Int64{1} << 34);
  EXPECT_LT((items - 1) * kPpoLossMostTurns * 256, Int64{1} << 34);
}

// In the order of the arguments, each to the type that kernels read.
TEST_F(LaunchPpoLossTest, WhatIsNotDenseOfItsTypeIsCopiedFirst) {
  PpoLossCall call = make_full({4, 6});
  call.cu_seqlens = tensor(DType::i32, {5});
  call.group_starts = view(tensor(DType::i64, {3}), {2});
  call.mask = tensor(DType::f32, {4, 6});
  call.log_probs.dtype = DType::bf16;
  call.old_log_probs = view(call.old_log_probs, {1, 4});
  call.advantages = view(tensor(DType::f32, {4}), {0});
  call.weights = view(tensor(DType::f64, {4, 1}), {3, 1});
  call.rollout_log_probs = view(call.rollout_log_probs, {7, 1});
  call.ref_log_probs.dtype = DType::f16;
  call.entropy = view(call.entropy, {-6, 1}, 18 * 4);
  const auto all = run(call);
  ASSERT_EQ(names(), "pack pack pack pack pack pack pack pack pack pack count weigh main finish");
  const PpoLossArgs& args = all[10].args;
  struct {
    const char* what;
    const Tensor& tensor;
    const void* to;
    PpoLossPack::Kind kind;
    Int64 rows, cols, row_stride, col_stride;
  } const copies[] = {
      {"cu_seqlens", call.cu_seqlens, args.starts, PpoLossPack::kIntegers, 1, 5, 0, 1},
      {"group_starts", call.group_starts, args.group_starts, PpoLossPack::kIntegers, 1, 3, 0, 2},
      {"mask", call.mask, args.mask, PpoLossPack::kBytes, 4, 6, 6, 1},
      {"log_probs", call.log_probs, args.log_probs, PpoLossPack::kFloats, 4, 6, 6, 1},
      {"old_log_probs", call.old_log_probs, args.old_log_probs, PpoLossPack::kFloats, 4, 6, 1, 4},
      {"advantages", call.advantages, args.advantages, PpoLossPack::kFloats, 1, 4, 0, 0},
      {"weights", call.weights, args.weights, PpoLossPack::kFloats, 4, 1, 3, 1},
      {"rollout", call.rollout_log_probs, args.rollout_log_probs, PpoLossPack::kFloats, 4, 6, 7, 1},
      {"ref", call.ref_log_probs, args.ref_log_probs, PpoLossPack::kFloats, 4, 6, 6, 1},
      {"entropy", call.entropy, args.entropy, PpoLossPack::kFloats, 4, 6, -6, 1},
  };
  for (std::size_t i = 0; i < std::size(copies); ++i) {
    const auto& wanted = copies[i];
    SCOPED_TRACE(wanted.what);
    const PpoLossPack& pack = all[i].copy;
    EXPECT_EQ(all[i].blocks, 1u);
    EXPECT_EQ(all[i].threads, 256u);
    EXPECT_EQ(pack.from, wanted.tensor.data);
    EXPECT_EQ(pack.to, wanted.to);
    EXPECT_EQ(pack.type, type_code(wanted.tensor.dtype));
    EXPECT_EQ(pack.to_kind, wanted.kind);
    EXPECT_EQ(pack.rows, wanted.rows);
    EXPECT_EQ(pack.cols, wanted.cols);
    EXPECT_EQ(pack.row_stride, wanted.row_stride);
    EXPECT_EQ(pack.col_stride, wanted.col_stride);
  }
}

TEST_F(LaunchPpoLossTest, MasksOfBytesAreReadInPlace) {
  for (const DType dtype : {DType::boolean, DType::u8, DType::i8}) {
    PpoLossCall call = make({4, 6});
    call.mask = tensor(dtype, {4, 6});
    run(call);
    EXPECT_EQ(names(), "count weigh main finish");
  }
  for (const DType dtype : {DType::i32, DType::i64, DType::f16, DType::f64}) {
    PpoLossCall call = make({4, 6});
    call.mask = tensor(dtype, {4, 6});
    run(call);
    EXPECT_EQ(names(), "pack count weigh main finish") << name(dtype);
  }
}

TEST_F(LaunchPpoLossTest, ManyTokensOfACopyShareBlocks) {
  PpoLossCall call = make({1024, 4096});
  call.log_probs.dtype = DType::bf16;
  EXPECT_EQ(run(call)[0].blocks, 4096u);
  call = make({10, 100});
  call.log_probs.dtype = DType::bf16;
  EXPECT_EQ(run(call)[0].blocks, 4u);
}

// The results are written all the same.
TEST_F(LaunchPpoLossTest, NoTokensAreNoMainStep) {
  run(make({4, 0}));
  EXPECT_EQ(names(), "count weigh finish");
  EXPECT_EQ(run(make({0, 4}))[0].args.num_sequences, 0);
  EXPECT_EQ(names(), "weigh finish");
}

// grpo_loss asks for what comes before the tokens.
TEST_F(LaunchPpoLossTest, WhatSequencesShareAloneIsTwoSteps) {
  PpoLossCall call = make({4, 6});
  call.loss = call.grad = call.counts = call.exact = call.float_metrics = {};
  call.sequence_weight = tensor(DType::f32, {4});
  call.sequence_kl_weight = tensor(DType::f32, {4});
  call.sequence_statistic = tensor(DType::f32, {4});
  for (const auto& step : run(call)) EXPECT_NE(step.args.counts, nullptr) << "of the workspace";
  ASSERT_EQ(names(), "count weigh");
}

TEST_F(LaunchPpoLossTest, ABackwardIsOneStepWithoutWorkspace) {
  for (const auto& [tokens, blocks] :
       {std::pair{Int64{1}, 1u}, {1024, 1}, {1025, 2}, {4096 * 1024, 4096}, {1 << 30, 4096}}) {
    PpoLossCall call = make({tokens});
    call.pass = jit::Pass::bwd;
    call.upstream = tensor(DType::f32, {});
    call.saved = tensor(DType::f32, {tokens});
    call.gradient = tensor(DType::bf16, {tokens});
    run(call);
    ASSERT_EQ(names(), "main");
    const FakeCuda::Launch& launch = fake_.launches[0];
    EXPECT_EQ(launch.grid_x, blocks);
    EXPECT_EQ(launch.block_x, 256u);
    PpoLossBackwardArgs args{};
    std::memcpy(&args, launch.first_argument.data(), launch.first_argument.size());
    EXPECT_EQ(args.num_tokens, tokens);
  }
}

TEST_F(LaunchPpoLossTest, AWorkspaceThatFailsLaunchesNothing) {
  workspace_.fails = true;
  EXPECT_THROW(run(make({4, 6})), DriverError);
  EXPECT_TRUE(fake_.launches.empty());
  EXPECT_TRUE(fake_.contexts()->empty());
}

TEST_F(LaunchPpoLossTest, ARefusedStepNamesItsEntryAndEndsTheCall) {
  const PpoLossCall call = make({4, 6});
  fake_.fail_call = "cuLaunchKernel";
  fake_.fail_at = 2;
  fake_.fail_code = runtime::cuda::result::invalid_value;
  const auto text = what<DriverError>([&] { run(call); });
  EXPECT_NE(text.find("rlk_ppo_loss_fwd_weigh of 1x1x1 blocks"), text.npos) << text;
  EXPECT_EQ(names(), "count");
  EXPECT_TRUE(fake_.contexts()->empty());
}

// What an earlier call of any op found on the device is raised once, in place of the next call.
TEST_F(LaunchPpoLossTest, AnEarlierCallsErrorIsRaisedOnce) {
  leave_error("logp");
  const PpoLossCall call = make({4, 6});
  EXPECT_EQ(what<InvalidArgument>([&] { run(call); }),
            "logp: target: expected ids in [0, 7), got 99 in row 3");
  EXPECT_TRUE(fake_.launches.empty());
  EXPECT_EQ(run(call).size(), 4u);
}

}  // namespace
}  // namespace rlk::test
