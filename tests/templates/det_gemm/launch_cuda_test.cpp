// SPDX-License-Identifier: Apache-2.0
// What det_gemm's launch asks of the driver: operands in place or copied, tiles, maps, ones.
#include "templates/det_gemm/op.hpp"
#include "tests/support/what.hpp"
#include "tests/templates/common/launch_fixture.hpp"

namespace rlk::test {
namespace {

class LaunchDetGemmTest : public LaunchFixture<DetGemmCudaArgs> {
 protected:
  DetGemmCall forward(Int64 rows, Int64 terms, Int64 cols, DType dtype = DType::bf16) {
    DetGemmCall call;
    call.op = &templates::det_gemm_op;
    call.device = {Device::Kind::cuda, k_device};
    call.stream = k_stream;
    call.workspace = &workspace_;
    call.a = tensor(dtype, {rows, terms});
    call.b = tensor(dtype, {terms, cols});
    call.out = tensor(dtype, {rows, cols});
    return call;
  }
  DetGemmCall backward(Int64 tokens, Int64 rows, Int64 cols, DType dtype = DType::bf16) {
    DetGemmCall call = forward(tokens, rows, cols, dtype);
    call.sums_tokens = true;
    call.b = tensor(dtype, {tokens, cols});
    call.out = tensor(dtype, {rows, cols});
    return call;
  }
  static Tensor transposed(Tensor matrix) {
    std::swap(matrix.shape[0], matrix.shape[1]);
    matrix.strides = {1, matrix.shape[0]};
    return matrix;
  }

  std::vector<Step> run(const DetGemmCall& call, Target target, int max_sms = 0) {
    forget();
    LoadedKernel kernel = load_entries(call.op->entries(call.pass, Backend::cuda));
    kernel.target = target;
    call.op->check(call);
    kernel.constants = call.op->specialize(call, target, {}).values;
    call.op->launch(kernel, call, {.max_sms = max_sms});
    if (call.a.present()) expect_sound(target);
    return steps();
  }
};

TEST_F(LaunchDetGemmTest, OperandsAreReadInPlaceInEitherDirection) {
  for (const Target target : {Target::sm_80, Target::sm_90a}) {
    for (const bool a_turned : {false, true}) {
      for (const bool b_turned : {false, true}) {
        DetGemmCall call = forward(1000, 64, 512);
        if (a_turned) call.a = transposed(tensor(DType::bf16, {64, 1000}));
        if (b_turned) call.b = transposed(tensor(DType::bf16, {512, 64}));
        const auto all = run(call, target);
        // The letters of the entry: along the terms or along the lanes.
        EXPECT_EQ(names(), std::string(a_turned ? "l" : "k") + (b_turned ? "k" : "l"));
        EXPECT_TRUE(workspace_.requests.empty());
        EXPECT_EQ(all[0].args.a.data, call.a.data);
        EXPECT_EQ(all[0].args.a.pitch, a_turned ? 1000 : 64);
        EXPECT_EQ(all[0].args.b.data, call.b.data);
        EXPECT_EQ(all[0].args.b.pitch, b_turned ? 64 : 512);
      }
    }
  }
}

TEST_F(LaunchDetGemmTest, WhatIsNotAlignedIsCopiedIntoPaddedLines) {
  DetGemmCall call = forward(30, 77, 301);
  auto all = run(call, Target::sm_80);
  ASSERT_EQ(names(), "pack pack kl");
  EXPECT_EQ(all[0].copy.from, call.a.data);
  EXPECT_EQ(all[0].copy.num_cols, 77);
  EXPECT_EQ(all[2].args.a.data, all[0].copy.to);
  EXPECT_EQ(all[2].args.a.pitch, 80);
  EXPECT_EQ(all[1].copy.num_rows, 77);
  EXPECT_EQ(all[2].args.b.pitch, 304);
  // In the direction in which it lies.
  call.b = transposed(tensor(DType::bf16, {301, 77}));
  all = run(call, Target::sm_80);
  ASSERT_EQ(names(), "pack pack kk");
  EXPECT_EQ(all[1].copy.num_rows, 301);
  EXPECT_EQ(all[2].args.b.pitch, 80);
}

TEST_F(LaunchDetGemmTest, LeadingAxesWithoutOneStrideAreCopied) {
  DetGemmCall call = forward(30, 64, 64);
  call.a = tensor(DType::bf16, {3, 10, 64});
  call.a.strides = {64, 3 * 64, 1};
  const auto all = run(call, Target::sm_90a);
  ASSERT_EQ(names(), "pack kl");
  EXPECT_EQ(all[0].copy.num_axes, 2);
  EXPECT_EQ(all[1].args.num_rows, 30);
}

TEST_F(LaunchDetGemmTest, TheTileFollowsTheSizes) {
  struct {
    DetGemmLoop loop;
    Int64 rows, cols;
    const char* tile;
  } const cases[] = {{kDetGemmSm90, 1, 4096, "64x32"},       {kDetGemmSm90, 64, 4096, "64x32"},
                     {kDetGemmSm90, 256, 4096, "64x128"},    {kDetGemmSm90, 4096, 4096, "128x256"},
                     {kDetGemmSm90, 8192, 14336, "128x192"}, {kDetGemmSm90, 4096, 12288, "128x192"},
                     {kDetGemmFp32, 64, 4096, "64x64"},      {kDetGemmFp32, 256, 4096, "64x128"},
                     {kDetGemmFp32, 256, 14336, "128x128"},  {kDetGemmFp32, 1024, 4096, "128x128"},
                     {kDetGemmFp32, 4096, 4096, "128x128"}};
  for (const auto& [loop, rows, cols, name] : cases) {
    const int tile = det_gemm_tile(loop, rows, cols, false);
    EXPECT_STREQ(kDetGemmTiles[tile].name, name) << rows << " x " << cols;
  }
  // Boxes along the lanes have 64 of them.
  EXPECT_STREQ(kDetGemmTiles[det_gemm_tile(kDetGemmSm90, 1, 4096, true)].name, "64x64");
}

TEST_F(LaunchDetGemmTest, EachTileHasItsShape) {
  for (int tile = 0; tile < kDetGemmNumTiles; ++tile) {
    if (!det_gemm_has_tile(kDetGemmSm90, tile, false)) continue;
    DetGemmCall call = forward(20000, 64, 10000);
    call.b = transposed(tensor(DType::bf16, {10000, 64}));
    call.tile = tile;
    const auto all = run(call, Target::sm_90a);
    const DetGemmSm90Tile shape = det_gemm_sm90_tile(tile);
    EXPECT_EQ(shape.rows, kDetGemmTiles[tile].rows);
    EXPECT_EQ(shape.cols, kDetGemmTiles[tile].cols);
    EXPECT_EQ(all[0].blocks, 132u);
    EXPECT_EQ(static_cast<int>(all[0].threads), shape.threads());
    EXPECT_EQ(all[0].args.next_tile != nullptr, shape.dynamic);
    ASSERT_EQ(fake_.tensor_maps.size(), 2u);
    EXPECT_EQ(fake_.tensor_maps[0].box_rows, static_cast<std::uint32_t>(shape.rows));
    EXPECT_EQ(fake_.tensor_maps[1].box_rows,
              static_cast<std::uint32_t>(shape.cols / shape.cluster));
    EXPECT_EQ(static_cast<int>(all[0].cluster), shape.cluster);
    EXPECT_EQ(run(call, Target::sm_90a, 7)[0].blocks, shape.cluster == 2 ? 6u : 7u);
  }
}

// Whole pairs of tiles one below the other, each of which copies half of b's boxes.
TEST_F(LaunchDetGemmTest, AClusterHasTilesInPairs) {
  DetGemmCall call = forward(257, 64, 400);
  call.tile = 7;
  auto all = run(call, Target::sm_90a);
  ASSERT_EQ(names(), "kl");
  EXPECT_EQ(all[0].cluster, 2u);
  EXPECT_EQ(all[0].blocks, 4 * 3u);
  EXPECT_EQ(fake_.tensor_maps[0].box_rows, 128u);
  EXPECT_EQ(fake_.tensor_maps[1].box_rows, 32u);
  EXPECT_EQ(run(call, Target::sm_90a, 1)[0].blocks, 2u);
}

TEST_F(LaunchDetGemmTest, FewRowsHaveShortBoxes) {
  DetGemmCall call = forward(3, 64, 4096);
  call.b = transposed(tensor(DType::bf16, {4096, 64}));
  auto all = run(call, Target::sm_90a);
  EXPECT_EQ(fake_.tensor_maps[0].box_rows, 8u);
  EXPECT_EQ(all[0].args.a_box_rows, 8);
  call.a = transposed(tensor(DType::bf16, {64, 8}));  // along the rows boxes are of 64
  call.out = tensor(DType::bf16, {8, 4096});
  all = run(call, Target::sm_90a);
  EXPECT_EQ(fake_.tensor_maps[0].box_rows, 64u);
  EXPECT_EQ(all[0].args.a_box_rows, 64);
}

TEST_F(LaunchDetGemmTest, TokensAreTheTermsOfTheBackward) {
  const DetGemmCall call = backward(1001, 512, 256);
  for (const Target target : {Target::sm_80, Target::sm_90a}) {
    const auto all = run(call, target);
    ASSERT_EQ(names(), "ll");  // any number of tokens is read in place
    EXPECT_EQ(all[0].args.num_terms, 1001);
    EXPECT_EQ(all[0].args.num_rows, 512);
    EXPECT_EQ(all[0].args.num_cols, 256);
  }
}

TEST_F(LaunchDetGemmTest, WithoutAnOperandRowsOfOnesAreSummed) {
  DetGemmCall call = backward(1001, 512, 256);
  call.a = Tensor{};
  call.out = tensor(DType::bf16, {256});
  const auto all = run(call, Target::sm_90a);
  ASSERT_EQ(names(), "kl");
  EXPECT_EQ(all[0].args.num_rows, 1);
  ASSERT_EQ(fake_.memsets.size(), 1u);
  EXPECT_EQ(fake_.memsets[0].value, 0x3f80u);
  EXPECT_EQ(fake_.memsets[0].bytes, 1008u * 2);
}

TEST_F(LaunchDetGemmTest, NoRowsAndNoTokensRunNothing) {
  EXPECT_TRUE(run(forward(0, 64, 64), Target::sm_90a).empty());
  DetGemmCall call = backward(0, 64, 64);
  EXPECT_TRUE(run(call, Target::sm_90a).empty());
  ASSERT_EQ(fake_.memsets.size(), 1u);
  EXPECT_EQ(fake_.memsets[0].bytes, 64u * 64 * 2);
  call.accumulates = true;
  call.out = tensor(DType::f32, {64, 64});
  run(call, Target::sm_90a);
  EXPECT_TRUE(fake_.memsets.empty());
}

TEST_F(LaunchDetGemmTest, MoreRowsThanATensorMapHasAreRefused) {
  const DetGemmCall call = forward(Int64{1} << 31, 64, 64);
  EXPECT_EQ(what<Unsupported>([&] { run(call, Target::sm_90a); }),
            "det_gemm: a: expected fewer than 2^31 rows on sm_90a, got 2147483648");
}

}  // namespace
}  // namespace rlk::test
