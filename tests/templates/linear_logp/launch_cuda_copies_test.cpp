// SPDX-License-Identifier: Apache-2.0
// Which tensors are copied into the workspace, by their strides, addresses and ranks.
#include "tests/templates/linear_logp/launch_cuda_fixture.hpp"

namespace rlk::test {
namespace {

class LaunchCudaCopiesTest : public LaunchCudaTest {
 protected:
  // The steps of a call with these two matrices, all else as made.
  std::vector<CudaStep> run_with(const Tensor& hidden, const Tensor& weight, CudaCase wanted = {}) {
    LinearLogpCall call = make(wanted);
    call.hidden = hidden;
    call.weight = weight;
    return run(call, wanted);
  }

  static Int64 bytes_past(const void* base, const void* address) {
    return static_cast<const std::byte*>(address) - static_cast<const std::byte*>(base);
  }
};

TEST_F(LaunchCudaCopiesTest, WholeSixteenBytesAreReadInPlace) {
  const Tensor hidden = tensor(DType::bf16, {1000, 64}), weight = tensor(DType::bf16, {1000, 64});
  struct {
    const char* what;
    Tensor hidden;
    Int64 pitch;
  } const cases[] = {
      {"dense", hidden, 64},
      {"rows of a wider matrix", view(hidden, {96, 1}, 32), 96},
      {"16 bytes in", view(hidden, {64, 1}, 16), 64},
      {"one row for all", view(hidden, {0, 1}), 0},
      {"rows backward", view(hidden, {-64, 1}, 999 * 128), -64},
  };
  for (const auto& [text, given, pitch] : cases) {
    const auto all = run_with(given, weight);
    ASSERT_EQ(names(), "main merge") << text;
    EXPECT_EQ(all[0].args.hidden, given.data) << text;
    EXPECT_EQ(all[0].args.hidden_pitch, pitch) << text;
    EXPECT_EQ(all[0].args.hidden_packed, 0) << text;
  }
  const auto all = run_with(hidden, view(weight, {128, 1}, 16));
  EXPECT_EQ(names(), "main merge");
  EXPECT_EQ(all[0].args.weight_pitch, 128);
}

TEST_F(LaunchCudaCopiesTest, AnythingElseIsCopied) {
  const Tensor hidden = tensor(DType::bf16, {1000, 64}), weight = tensor(DType::bf16, {1000, 64});
  for (const auto& strides : std::vector<std::vector<Int64>>{
           {65, 1}, {64, 2}, {1, 1000}, {64, 0}, {0, 0}, {64, -1}, {-65, 1}, {4, 1}}) {
    for (const bool of_hidden : {true, false}) {
      const Tensor given = view(of_hidden ? hidden : weight, strides);
      const auto all = run_with(of_hidden ? given : hidden, of_hidden ? weight : given);
      SCOPED_TRACE(testing::Message() << strides[0] << ", " << strides[1] << " " << of_hidden);
      ASSERT_EQ(names(), "pack main merge");
      const CudaCopy& copy = all[0].copy;
      EXPECT_EQ(copy.from, given.data);
      EXPECT_EQ(copy.num_rows * copy.num_cols, 1000 * 64);
      EXPECT_EQ(copy.strides[0], strides[0]);
      EXPECT_EQ(copy.col_stride, strides[1]);
      EXPECT_EQ(copy.rows, nullptr);
      const LinearLogpCudaArgs& args = all[1].args;
      EXPECT_EQ(of_hidden ? args.hidden : args.weight, copy.to);
      EXPECT_EQ(of_hidden ? args.hidden_pitch : args.weight_pitch, copy.pitch);
      EXPECT_EQ(args.hidden_packed, of_hidden ? 1 : 0);
    }
  }
}

TEST_F(LaunchCudaCopiesTest, AddressesWithinSixteenBytesAreCopied) {
  for (const DType dtype : {DType::bf16, DType::f16, DType::f32}) {
    const Tensor hidden = tensor(dtype, {1000, 64}), weight = tensor(dtype, {1000, 64});
    for (Int64 offset = size_bytes(dtype); offset < 16; offset += size_bytes(dtype)) {
      run_with(view(hidden, {64, 1}, offset), weight);
      EXPECT_EQ(names(), "pack main merge") << offset;
      run_with(hidden, view(weight, {64, 1}, offset));
      EXPECT_EQ(names(), "pack main merge") << offset;
      run_with(view(hidden, {64, 1}, offset), view(weight, {64, 1}, offset));
      EXPECT_EQ(names(), "pack pack main merge") << offset;
    }
  }
}

// A hidden size that is no whole number of 16 bytes is padded, be the rows aligned or not.
TEST_F(LaunchCudaCopiesTest, OddHiddenSizesArePadded) {
  for (const auto& [dtype, dim, pitch] :
       {std::tuple{DType::bf16, 63, 64}, std::tuple{DType::f16, 1, 8},
        std::tuple{DType::f32, 62, 64}, std::tuple{DType::f32, 5, 8}}) {
    const auto all =
        run_with(view(tensor(dtype, {1000, dim}), {64, 1}),
                 view(tensor(dtype, {1000, dim}), {64, 1}), {.dim = dim, .dtype = dtype});
    ASSERT_EQ(names(), "pack pack main merge");
    for (int i : {0, 1}) {
      EXPECT_EQ(all[i].copy.num_cols, dim);
      EXPECT_EQ(all[i].copy.pitch, pitch);
      EXPECT_EQ(all[i].copy.strides[0], 64);
    }
    EXPECT_EQ(all[2].args.hidden_pitch, pitch);
    EXPECT_EQ(all[2].args.weight_pitch, pitch);
    EXPECT_EQ(all[2].args.dim, dim);
  }
}

TEST_F(LaunchCudaCopiesTest, LeadingAxesOfOneStrideAreOneAxis) {
  CudaCase wanted{.rows = 24};
  LinearLogpCall call = make(wanted);
  for (Tensor* per_row : {&call.target, &call.log_prob, &call.row_max, &call.row_log_sum}) {
    *per_row = tensor(per_row->dtype, {2, 3, 4});
  }
  call.hidden = view(tensor(DType::bf16, {2, 3, 4, 64}), {12 * 72, 4 * 72, 72, 1});
  run(call, wanted);
  ASSERT_EQ(names(), "main merge");
  EXPECT_EQ(steps()[0].args.hidden_pitch, 72);
  EXPECT_EQ(steps()[0].args.num_rows, 24);

  // Batch and sequence swapped.
  call.hidden = view(call.hidden, {4 * 72, 8 * 72, 72, 1});
  run(call, wanted);
  ASSERT_EQ(names(), "pack main merge");
  const CudaCopy copy = steps()[0].copy;
  EXPECT_EQ(copy.num_axes, 3);
  EXPECT_EQ(copy.num_rows, 24);
  for (int axis = 0; axis < 3; ++axis) {
    EXPECT_EQ(copy.sizes[axis], axis + 2);
    EXPECT_EQ(copy.strides[axis], call.hidden.strides[axis] / 8);
  }
}

TEST_F(LaunchCudaCopiesTest, OneRowNeedsNoLeadingAxis) {
  CudaCase wanted{.rows = 1};
  LinearLogpCall call = make(wanted);
  for (Tensor* per_row : {&call.target, &call.log_prob, &call.row_max, &call.row_log_sum}) {
    *per_row = tensor(per_row->dtype, {});
  }
  call.hidden = tensor(DType::bf16, {64});
  run(call, wanted);
  EXPECT_EQ(names(), "main merge");
  call.hidden = view(call.hidden, {2});
  run(call, wanted);
  ASSERT_EQ(names(), "pack main merge");
  EXPECT_EQ(steps()[0].copy.num_axes, 0);
  EXPECT_EQ(steps()[0].copy.num_rows, 1);
  EXPECT_EQ(steps()[0].blocks, 1u);
}

TEST_F(LaunchCudaCopiesTest, OneColumnOfVocabularyHasNoStride) {
  CudaCase wanted{.vocab = 1};
  LinearLogpCall call = make(wanted);
  call.weight = view(call.weight, {63, 1});
  run(call, wanted);
  EXPECT_EQ(names(), "main merge");
}

// Values a row are read by the step rows, so their copies come before it.
TEST_F(LaunchCudaCopiesTest, ValuesARowOfMoreThanOneStrideAreCopiedFirst) {
  CudaCase wanted{.rows = 12, .pass = jit::Pass::bwd, .has_mask = true, .has_temperature = true};
  LinearLogpCall call = make(wanted);
  call.hidden = view(tensor(DType::bf16, {3, 4, 64}), {64, 3 * 64, 1});
  call.weight = view(call.weight, {65, 1});
  call.row_max = tensor(DType::f32, {3, 4});
  call.row_log_sum = tensor(DType::f32, {3, 4});
  call.log_prob = tensor(DType::f32, {3, 4});
  call.grad_hidden = tensor(DType::bf16, {3, 4, 64});
  call.target = view(tensor(DType::i32, {3, 4}), {1, 3});
  call.mask = view(tensor(DType::boolean, {3, 4}), {1, 3});
  call.temperature = view(tensor(DType::f64, {3, 4}), {1, 3});
  call.grad_output = view(tensor(DType::bf16, {3, 4}), {1, 3});
  run(call, wanted);
  ASSERT_EQ(names(), "pack pack pack pack rows pack pack grads dz dh join dw");
  const auto all = steps();
  const LinearLogpCudaArgs& args = all[4].args;
  expect_copied(args.grad, all[0].copy, call.grad_output);
  expect_copied(args.target, all[1].copy, call.target);
  expect_copied(args.mask, all[2].copy, call.mask);
  expect_copied(args.temperature, all[3].copy, call.temperature);
  EXPECT_EQ(all[5].copy.from, call.hidden.data);
  EXPECT_EQ(all[5].copy.rows, args.rows);
  EXPECT_EQ(all[6].copy.from, call.weight.data);
  EXPECT_EQ(all[6].copy.rows, nullptr) << "the vocabulary has no inactive rows";

  call.pass = wanted.pass = jit::Pass::fwd;
  call.grad_output = call.grad_hidden = call.grad_weight = {};
  run(call, wanted);
  EXPECT_EQ(names(), "pack pack pack pack pack main merge");
}

TEST_F(LaunchCudaCopiesTest, ValuesARowOfOneStrideStay) {
  CudaCase wanted{.rows = 12, .has_mask = true};
  LinearLogpCall call = make(wanted);
  call.target = view(call.target, {0});
  call.mask = view(call.mask, {-1}, 11);
  run(call, wanted);
  ASSERT_EQ(names(), "main merge");
  expect_array(steps()[0].args.target, call.target);
  expect_array(steps()[0].args.mask, call.mask);
}

// Only a copy made through the list of active rows is short of the others.
TEST_F(LaunchCudaCopiesTest, ACopyOfHiddenHoldsActiveRowsAlone) {
  const Tensor odd = view(tensor(DType::bf16, {1000, 64}), {65, 1});
  const Tensor weight = tensor(DType::bf16, {1000, 64});
  for (const auto pass : {jit::Pass::fwd, jit::Pass::bwd}) {
    const auto all = run_with(odd, weight, {.pass = pass, .ignore_index = -100});
    ASSERT_EQ(all[0].name, "rows");
    ASSERT_EQ(all[1].name, "pack");
    EXPECT_EQ(all[1].copy.rows, all[0].args.rows);
    EXPECT_EQ(all[1].copy.num_active, all[0].args.num_active);
    EXPECT_EQ(all[2].args.hidden_packed, 1);
  }
  // The backward's products take active rows in order, so they are gathered; the forward gathers
  // as it reads.
  const Tensor even = tensor(DType::bf16, {1000, 64});
  for (const auto& ignored : {std::optional<Int64>(), std::optional<Int64>(-100)}) {
    const auto all = run_with(even, weight, {.pass = jit::Pass::bwd, .ignore_index = ignored});
    ASSERT_EQ(names(), "rows pack grads dz dh join dw");
    EXPECT_EQ(all[1].copy.skipped_if_all, 1) << "then hidden does";
    EXPECT_EQ(all[2].args.hidden, even.data);
    EXPECT_EQ(all[2].args.hidden_packed, 0);
    EXPECT_EQ(all[2].args.gathered, all[1].copy.to);
    EXPECT_EQ(all[2].args.gathered_pitch, 64);
  }
  run_with(even, weight, {.ignore_index = -100});
  EXPECT_EQ(names(), "rows main merge");
}

TEST_F(LaunchCudaCopiesTest, ManyRowsOfACopyShareBlocks) {
  const auto all = run({.rows = 262144, .vocab = 250001, .dim = 4095});
  EXPECT_EQ(all[0].blocks, 1024u);
  EXPECT_EQ(all[1].blocks, 1024u);
  EXPECT_EQ(all[0].copy.num_rows, 262144);
  EXPECT_EQ(bytes_past(all[0].copy.to, all[1].copy.to), Int64{262144} * 4096 * 2);
}

TEST_F(LaunchCudaCopiesTest, EveryOperandMayNeedACopy) {
  CudaCase wanted{.dim = 63,
                  .pass = jit::Pass::bwd,
                  .has_mask = true,
                  .has_temperature = true,
                  .has_entropy = true,
                  .has_lse = true};
  LinearLogpCall call = make(wanted);
  // Two leading axes that no one stride walks.
  call.hidden = view(tensor(call.hidden.dtype, {10, 100, 63}), {70000, 64, 1});
  for (Tensor* each :
       std::initializer_list<Tensor*>{&call.target, &call.mask, &call.temperature,
                                      &call.grad_output, &call.grad_entropy, &call.grad_lse}) {
    *each = view(tensor(each->dtype, {10, 100}), {128, 1});
  }
  run(call, wanted);
  EXPECT_EQ(names(), "pack pack pack pack pack pack rows pack pack grads dz dh join dw");
  const LinearLogpCudaArgs args = steps().back().args;
  for (const auto* each : {&args.grad, &args.grad_entropy, &args.grad_lse}) {
    EXPECT_EQ(each->stride, 1);
    EXPECT_GE(reinterpret_cast<std::uintptr_t>(each->data), FakeWorkspace::k_address);
  }
}

}  // namespace
}  // namespace rlk::test
