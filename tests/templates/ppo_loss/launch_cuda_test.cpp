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
      add("tally", args.tally, {}, sizeof(PpoLossTally));
    }
    arrays.expect_fill(workspace_);
  }
};

TEST_F(LaunchPpoLossTest, AForwardIsTwoSteps) {
  PpoLossCall call = make({8, 512});
  call.mask = tensor(DType::boolean, {8, 512});
  call.values.ratio_high = 1.28f;
  call.reduction = kSequenceMean;
  call.kl_reduction = kTokenSum;
  call.length = 99;
  const auto all = run(call);
  ASSERT_EQ(names(), "count main");
  const auto expect_dims = [&](int step, unsigned blocks, unsigned threads) {
    EXPECT_EQ(all[step].blocks, blocks) << all[step].name;
    EXPECT_EQ(all[step].threads, threads) << all[step].name;
    EXPECT_EQ(all[step].shared_bytes, 0u) << all[step].name;
  };
  expect_dims(0, 8, 512);
  expect_dims(1, 4, 256);
  for (const PpoLossStep& step : all) {
    const PpoLossArgs& args = step.args;
    EXPECT_EQ(args.num_tokens, 8 * 512);
    EXPECT_EQ(args.num_sequences, 8);
    EXPECT_EQ(args.length, 512);
    EXPECT_EQ(args.num_items, 4);
    EXPECT_EQ(args.weighs_in_main, 1);
    EXPECT_EQ(args.has_groups, 1);
    EXPECT_EQ(args.reductions.policy, kSequenceMean);
    EXPECT_EQ(args.reductions.kl, kTokenSum);
    EXPECT_EQ(args.reductions.length, 99);
    EXPECT_EQ(args.group_size, 1);
    EXPECT_EQ(args.num_groups, 8) << "each sequence is one";
  }
}

// A step that does not wait itself must not begin before others have ended.
TEST_F(LaunchPpoLossTest, StepsOverlapWhereTheirCodeWaits) {
  const PpoLossCall call = make({8, 512});
  const auto expect_overlaps = [&](Target target, bool overlaps) {
    forget();
    LoadedKernel kernel = load_entries(ppo_loss_entries(call.pass, Backend::cuda));
    kernel.target = target;
    launch_ppo_loss(kernel, call, {});
    ASSERT_EQ(fake_.launches.size(), 2u);
    for (const auto& launch : fake_.launches) EXPECT_EQ(launch.overlaps, overlaps) << name(target);
  };
  for (const Target target : {Target::sm_90a, Target::sm_100, Target::sm_120}) {
    expect_overlaps(target, true);
  }
  for (const Target target : {Target::sm_80, Target::sm_86, Target::sm_89, Target::compute_80}) {
    expect_overlaps(target, false);
  }
}

TEST_F(LaunchPpoLossTest, ADerivativeThroughTheSequencesMeanIsAStepOfItsOwn) {
  PpoLossCall call = make({8, 512});
  call.choices.ratio = kSequenceTokenRatio;
  run(call);
  EXPECT_EQ(names(), "count main");
  call.choices.ratio = kSequenceRatio;
  const auto all = run(call);
  ASSERT_EQ(names(), "count weigh slope main");
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
  EXPECT_EQ(names(), "count weigh slope main");

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
  EXPECT_EQ(names(), "count main");
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
  EXPECT_EQ(names(), "count main");
}

TEST_F(LaunchPpoLossTest, AdvantagesAndWeightsMayBeOneASequence) {
  for (const auto& shape : std::vector<std::vector<Int64>>{{8}, {8, 1}}) {
    PpoLossCall call = make({8, 512});
    call.advantages = tensor(DType::f32, shape);
    call.weights = tensor(DType::f32, shape);
    const PpoLossArgs args = run(call).back().args;
    EXPECT_EQ(names(), "count main");
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
  ASSERT_EQ(names(), "count weigh main");
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

// As many blocks as run at once, and more only where a thread would have too many tokens.
TEST_F(LaunchPpoLossTest, BlocksFillTheCardOnce) {
  for (const Int64 length : {1, 15, 16, 17, 255, 256, 257, 4096, 65536, 1 << 20}) {
    const auto all = run(make({64, length}));
    const Int64 tiles = ceil_div(64 * length, kPpoLossTile);
    EXPECT_EQ(all[1].args.num_items, std::min(tiles, 2 * k_num_sms)) << length;
    EXPECT_EQ(Int64{all[1].blocks}, all[1].args.num_items) << length;
  }
  const auto all = run(make({1 << 17, 1 << 17}));
  EXPECT_EQ(all[0].blocks, 65535u) << "the kernel's own loop takes the rest";
  const Int64 items = all[2].args.num_items, most = kPpoLossMostTiles * kPpoLossTile;
  EXPECT_GE(items * most, Int64{1} << 34);
  EXPECT_LT((items - 1) * most, Int64{1} << 34);
}

TEST_F(LaunchPpoLossTest, WeightsAreAStepOfTheirOwnWhereSequencesAreManyOrGroupsAsk) {
  const auto expect_steps = [&](const PpoLossCall& call, const char* steps, bool in_main) {
    EXPECT_EQ(run(call)[0].args.weighs_in_main, in_main);
    EXPECT_EQ(names(), steps);
  };
  expect_steps(make({kPpoLossMostWeighed, 4}), "count main", true);
  expect_steps(make({kPpoLossMostWeighed + 1, 4}), "count weigh main", false);
  PpoLossCall call = make({8, 512});
  call.group_size = 4;
  expect_steps(call, "count main", true);
  call.reduction = kGroupMean;
  expect_steps(call, "count weigh main", false);
  call.reduction = kTokenMean;
  call.kl_reduction = kGroupMean;
  expect_steps(call, "count weigh main", false);
}

// Of arrays of tokens alone; a view of whole rows may begin anywhere.
TEST_F(LaunchPpoLossTest, TokensAreTakenInGroupsWhereArraysAllowIt) {
  EXPECT_EQ(run(make_full({8, 512})).back().args.has_groups, 1);
  const auto shifted = [&](Tensor PpoLossCall::* array, Int64 bytes) {
    PpoLossCall call = make_full({8, 512});
    (call.*array).data = static_cast<char*>((call.*array).data) + bytes;
    const auto all = run(call);
    EXPECT_EQ(names(), "count main");
    return all.back().args.has_groups;
  };
  for (const auto array :
       {&PpoLossCall::log_probs, &PpoLossCall::old_log_probs, &PpoLossCall::advantages,
        &PpoLossCall::rollout_log_probs, &PpoLossCall::ref_log_probs, &PpoLossCall::entropy,
        &PpoLossCall::weights, &PpoLossCall::grad, &PpoLossCall::grad_entropy}) {
    EXPECT_EQ(shifted(array, 8), 0);
    EXPECT_EQ(shifted(array, 16), 1);
  }
  EXPECT_EQ(shifted(&PpoLossCall::mask, 2), 0);
  EXPECT_EQ(shifted(&PpoLossCall::mask, 4), 1);
  PpoLossCall call = make({8, 512});
  call.advantages = tensor(DType::f32, {8});
  call.advantages.data = static_cast<char*>(call.advantages.data) + 4;
  EXPECT_EQ(run(call).back().args.has_groups, 1);
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
  ASSERT_EQ(names(), "pack pack pack pack pack pack pack pack pack pack count weigh main");
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
    EXPECT_EQ(names(), "count main");
  }
  for (const DType dtype : {DType::i32, DType::i64, DType::f16, DType::f64}) {
    PpoLossCall call = make({4, 6});
    call.mask = tensor(dtype, {4, 6});
    run(call);
    EXPECT_EQ(names(), "pack count main") << name(dtype);
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
TEST_F(LaunchPpoLossTest, NoTokensAreOneBlock) {
  for (const auto& shape : std::vector<std::vector<Int64>>{{4, 0}, {0, 4}}) {
    const auto all = run(make(shape));
    ASSERT_EQ(names(), "count main");
    EXPECT_EQ(all[0].args.num_sequences, shape[0]);
    EXPECT_EQ(all[0].blocks, static_cast<unsigned>(std::max<Int64>(shape[0], 1)));
    EXPECT_EQ(all[1].blocks, 1u);
  }
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

// Where nothing is mostly to do, few blocks look whether there is.
TEST_F(LaunchPpoLossTest, ABackwardInPlaceIsOneWave) {
  for (const auto& [tokens, blocks] :
       {std::pair{Int64{1}, Int64{1}}, {1025, 2}, {1 << 30, 2 * k_num_sms}}) {
    PpoLossCall call = make({tokens});
    call.pass = jit::Pass::bwd;
    call.upstream = tensor(DType::f32, {});
    call.saved = tensor(DType::f32, {tokens});
    call.gradient = call.saved;
    run(call);
    ASSERT_EQ(names(), "main");
    EXPECT_EQ(Int64{fake_.launches[0].grid_x}, blocks);
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
  fake_.fail_call = "cuLaunchKernelEx";
  fake_.fail_at = 2;
  fake_.fail_code = runtime::cuda::result::invalid_value;
  const auto text = what<DriverError>([&] { run(call); });
  EXPECT_NE(text.find("rlk_ppo_loss_fwd_main of 1x1x1 blocks"), text.npos) << text;
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
  EXPECT_EQ(run(call).size(), 2u);
}

}  // namespace
}  // namespace rlk::test
