// SPDX-License-Identifier: Apache-2.0
// Logits are read where they lie, whatever their strides; values a row are copied where no one
// stride walks them.
#include "tests/templates/logp/launch_cuda_fixture.hpp"

namespace rlk::test {
namespace {

using LaunchLogpCopiesTest = LaunchLogpTest;

TEST_F(LaunchLogpCopiesTest, LogitsAreReadInPlace) {
  const Tensor dense = tensor(DType::bf16, {1000, 1000});
  struct {
    const char* what;
    Tensor logits;
    Int64 row_stride, col_stride;
  } const cases[] = {
      {"rows of a wider matrix", view(dense, {1003, 1}, 2), 1003, 1},
      {"transposed", view(dense, {1, 1000}), 1, 1000},
      {"one row for all", view(dense, {0, 1}), 0, 1},
      {"backward", view(dense, {-1000, -1}, 1999998), -1000, -1},
  };
  for (const auto pass : {jit::Pass::fwd, jit::Pass::bwd}) {
    for (const auto& [text, given, row_stride, col_stride] : cases) {
      LogpCall call = make({.pass = pass});
      call.logits = given;
      const auto all = run(call);
      ASSERT_EQ(names(), "main") << text;
      EXPECT_EQ(all[0].args.logits.data, given.data) << text;
      EXPECT_EQ(all[0].args.logits.num_axes, 1) << text;
      EXPECT_EQ(all[0].args.logits.strides[0], row_stride) << text;
      EXPECT_EQ(all[0].args.logits.col_stride, col_stride) << text;
      EXPECT_TRUE(workspace_.requests.empty()) << text;
    }
  }
}

TEST_F(LaunchLogpCopiesTest, LeadingAxesOfOneStrideAreOneAxis) {
  LogpCall call = make({.rows = 24});
  for (Tensor* each : {&call.target, &call.log_prob, &call.row_max, &call.row_log_sum}) {
    *each = tensor(each->dtype, {2, 3, 4});
  }
  call.logits = view(tensor(DType::bf16, {2, 3, 4, 64}), {12 * 72, 4 * 72, 72, 1});
  LogpCudaMatrix logits = run(call)[0].args.logits;
  EXPECT_EQ(logits.num_axes, 1);
  EXPECT_EQ(logits.sizes[0], 24);
  EXPECT_EQ(logits.strides[0], 72);

  // The last token of each sequence is left out: two strides.
  call.logits = view(call.logits, {20 * 72, 5 * 72, 72, 1});
  logits = run(call)[0].args.logits;
  ASSERT_EQ(names(), "main") << "no copy";
  EXPECT_EQ(logits.num_axes, 3);
  for (int axis = 0; axis < 3; ++axis) {
    EXPECT_EQ(logits.sizes[axis], axis + 2);
    EXPECT_EQ(logits.strides[axis], call.logits.strides[axis]);
  }
  EXPECT_EQ(logits.col_stride, 1);
}

TEST_F(LaunchLogpCopiesTest, OneRowNeedsNoLeadingAxis) {
  LogpCall call = make({.rows = 1});
  call.logits = view(tensor(DType::bf16, {1000}), {2});
  for (Tensor* each : {&call.target, &call.log_prob, &call.row_max, &call.row_log_sum}) {
    *each = tensor(each->dtype, {});
  }
  const LogpCudaArgs args = run(call)[0].args;
  EXPECT_EQ(args.num_rows, 1);
  EXPECT_EQ(args.logits.sizes[0], 1);
  EXPECT_EQ(args.logits.col_stride, 2);
}

TEST_F(LaunchLogpCopiesTest, TheGradientIsWrittenWhereItLies) {
  LogpCall call = make({.rows = 12, .pass = jit::Pass::bwd});
  for (Tensor* each : {&call.target, &call.grad_output, &call.row_max, &call.row_log_sum}) {
    *each = tensor(each->dtype, {3, 4});
  }
  call.logits = tensor(DType::bf16, {3, 4, 1000});
  call.grad_logits = view(tensor(DType::bf16, {3, 4, 1000}), {5000, 1000, 1});
  const LogpCudaArgs args = run(call)[0].args;
  EXPECT_EQ(args.logits.num_axes, 1);
  EXPECT_EQ(args.grad_logits.num_axes, 2);
  EXPECT_EQ(args.grad_logits.strides[0], 5000);
  EXPECT_EQ(args.grad_logits.strides[1], 1000);
}

TEST_F(LaunchLogpCopiesTest, ValuesARowOfOneStrideStay) {
  LogpCall call = make({.rows = 12, .has_mask = true});
  call.target = view(call.target, {0});
  call.mask = view(call.mask, {-1}, 11);
  const auto all = run(call);
  ASSERT_EQ(names(), "main");
  expect_array(all[0].args.target, call.target);
  expect_array(all[0].args.mask, call.mask);
}

TEST_F(LaunchLogpCopiesTest, ValuesARowOfMoreThanOneStrideAreCopiedFirst) {
  for (const Int64 vocab : {1000, 152064}) {
    LogpCall call = make(
        {.rows = 12, .vocab = vocab, .pass = jit::Pass::bwd, .has_entropy = true, .has_lse = true});
    call.target = view(tensor(DType::i32, {3, 4}), {1, 3});
    call.mask = view(tensor(DType::boolean, {3, 4}), {1, 3});
    call.temperature = view(tensor(DType::f64, {3, 4}), {1, 3});
    call.grad_output = view(tensor(DType::bf16, {3, 4}), {1, 3});
    call.grad_entropy = view(tensor(DType::f16, {3, 4}), {1, 3});
    call.grad_lse = view(tensor(DType::f32, {3, 4}), {1, 3});
    const auto all = run(call);
    ASSERT_EQ(names(), "pack pack pack pack pack pack main");
    const LogpCudaArgs& args = all[6].args;
    const Tensor* given[] = {&call.grad_output, &call.grad_entropy, &call.grad_lse,
                             &call.target,      &call.mask,         &call.temperature};
    const LogpCudaArray* read[] = {&args.grad,   &args.grad_entropy, &args.grad_lse,
                                   &args.target, &args.mask,         &args.temperature};
    for (std::size_t i = 0; i < std::size(given); ++i) {
      SCOPED_TRACE(i);
      expect_copied(*read[i], all[i].copy, *given[i]);
      EXPECT_EQ(all[i].copy.sizes[0], 3);
      EXPECT_EQ(all[i].copy.strides[1], 3);
    }

    // In the forward, beside the partials of rows that are cut.
    call.pass = jit::Pass::fwd;
    call.grad_output = call.grad_entropy = call.grad_lse = call.grad_logits = {};
    call.log_prob = tensor(DType::f32, {3, 4});
    run(call);
    EXPECT_EQ(names(), vocab == 1000 ? "pack pack pack main" : "pack pack pack main merge");
  }
}

TEST_F(LaunchLogpCopiesTest, ManyRowsOfACopyShareBlocks) {
  LogpCall call = make({.rows = 6000, .vocab = 8});
  call.target = view(tensor(DType::i64, {60, 100}), {128, 1});
  call.log_prob = tensor(DType::f32, {60, 100});
  call.logits = tensor(DType::bf16, {60, 100, 8});
  const auto all = run(call);
  ASSERT_EQ(names(), "pack main");
  EXPECT_EQ(all[0].blocks, 1024u);
  EXPECT_EQ(all[0].copy.num_rows, 6000);
}

}  // namespace
}  // namespace rlk::test
