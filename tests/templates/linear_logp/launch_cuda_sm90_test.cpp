// SPDX-License-Identifier: Apache-2.0
// The steps by the loop of sm_90a: grid, matrices, gathered rows, counters.
#include "tests/support/what.hpp"
#include "tests/templates/linear_logp/launch_cuda_fixture.hpp"

namespace rlk::test {
namespace {

class LaunchCudaSm90Test : public LaunchCudaTest {
 protected:
  static CudaCase on_sm90(CudaCase wanted = {}) {
    wanted.target = Target::sm_90a;
    return wanted;
  }
};

TEST_F(LaunchCudaSm90Test, MatricesAreReadInPlace) {
  const CudaCase wanted = on_sm90({.rows = 1000, .vocab = 1000, .dim = 64});
  const LinearLogpCall call = make(wanted);
  const auto all = run(call, wanted);
  ASSERT_EQ(names(), "main merge");
  // 8 tiles of 128 rows by 8 leaves: fewer than the card has multiprocessors.
  EXPECT_EQ(all[0].blocks, 64u);
  ASSERT_EQ(fake_.tensor_maps.size(), 2u);  // hidden's is that of the gathered rows as well
  const auto& hidden = fake_.tensor_maps[0];
  EXPECT_EQ(hidden.data, call.hidden.data);
  EXPECT_EQ(hidden.num_rows, 1000u);
  EXPECT_EQ(hidden.num_cols, 64u);
  EXPECT_EQ(hidden.pitch_bytes, 128u);
  EXPECT_EQ(hidden.box_rows, 128u);
  EXPECT_EQ(fake_.tensor_maps[1].data, call.weight.data);
  EXPECT_EQ(fake_.tensor_maps[1].box_rows, 192u);
}

TEST_F(LaunchCudaSm90Test, TheGridIsTheCardOrFewer) {
  const CudaCase large = on_sm90({.rows = 4096, .vocab = 131072, .dim = 2048});
  EXPECT_EQ(run(large).at(0).blocks, 132u);
  for (const int max_sms : {1, 7, 131, 132, 1000}) {
    CudaCase wanted = large;
    wanted.max_sms = max_sms;
    EXPECT_EQ(run(wanted).at(0).blocks, static_cast<unsigned>(std::min(max_sms, 132)));
  }
}

// As many as the card has or the setting leaves, one at least, whose blocks have a tile each even
// where there is none.
TEST_F(LaunchCudaSm90Test, TheGridIsWholeClusters) {
  CudaCase wanted = on_sm90({.rows = 4096, .vocab = 131072, .dim = 2048});
  wanted.tile = 5;
  for (const auto& [max_sms, blocks] :
       {std::pair{0, 132u}, {1, 2u}, {2, 2u}, {7, 6u}, {131, 130u}, {1000, 132u}}) {
    wanted.max_sms = max_sms;
    EXPECT_EQ(run(wanted).at(0).blocks, blocks) << max_sms;
  }
  wanted = on_sm90({.rows = 257, .vocab = 8, .dim = 64});
  wanted.tile = 5;
  EXPECT_EQ(run(wanted).at(0).blocks, 8 * 4u);
  EXPECT_EQ(run(wanted).at(0).args.strip_rows, 512);
  EXPECT_EQ(run(wanted).at(1).cluster, 1u);
}

TEST_F(LaunchCudaSm90Test, MoreRowsThanATensorMapHasAreRefused) {
  const CudaCase wanted = on_sm90({.rows = Int64{1} << 31, .vocab = 8, .dim = 64});
  EXPECT_EQ(what<Unsupported>([&] { run(wanted); }),
            "linear_logp: hidden: expected fewer than 2^31 rows on sm_90a, got 2147483648");
}

TEST_F(LaunchCudaSm90Test, EachTileHasItsShape) {
  for (Int64 tile = 0; tile < Int64{std::size(kLinearLogpSm90Tiles)}; ++tile) {
    const LinearLogpSm90Tile& shape = kLinearLogpSm90Tiles[tile];
    CudaCase wanted = on_sm90({.rows = 1000, .vocab = 8, .dim = 64});
    wanted.tile = tile;
    const auto all = run(wanted);
    EXPECT_EQ(Int64{all[0].blocks}, 8 * ceil_div(1000, shape.rows)) << shape.name;
    EXPECT_EQ(static_cast<int>(all[0].cluster), shape.cluster) << shape.name;
    EXPECT_EQ(static_cast<int>(all[0].shared_bytes), shape.shared_bytes()) << shape.name;
    EXPECT_LE(shape.shared_bytes(), shared_limit_bytes(Target::sm_90a)) << shape.name;
    EXPECT_EQ(fake_.tensor_maps[0].box_rows, static_cast<std::uint32_t>(shape.rows));
    EXPECT_EQ(fake_.tensor_maps[1].box_rows, 192u / static_cast<unsigned>(shape.cluster));
    EXPECT_EQ(all[0].args.next_tile != nullptr, shape.dynamic) << shape.name;
    EXPECT_EQ(fake_.memsets.size(), 0u) << shape.name;  // each tile has a block
  }
}

// A counter a strip, all zeroed before the first.
TEST_F(LaunchCudaSm90Test, CountersAreZeroedOnce) {
  const auto all = run(on_sm90({.rows = 16384, .vocab = 248320, .dim = 2048}));
  ASSERT_EQ(names(), "main merge main merge main merge main merge");
  ASSERT_EQ(fake_.memsets.size(), 1u);
  EXPECT_EQ(fake_.memsets[0].bytes, 16u);
  EXPECT_EQ(fake_.memsets[0].address, reinterpret_cast<std::uint64_t>(all[0].args.next_tile));
  for (std::size_t i = 0; i < all.size(); i += 2) {
    EXPECT_EQ(all[i].args.next_tile, all[0].args.next_tile + i / 2);
    // Whole groups of rows, which the cache holds.
    EXPECT_EQ(all[i].args.first_row, Int64(i / 2) * 4096);
    EXPECT_EQ(all[i].args.strip_rows, 4096);
    EXPECT_EQ(all[i].args.group_tiles, 32);
  }
}

// What active rows there are is known on the device alone: both ways to read them are given.
TEST_F(LaunchCudaSm90Test, ActiveRowsAreGatheredUnlessAllAre) {
  for (const bool has_mask : {false, true}) {
    CudaCase wanted = on_sm90({.rows = 257, .dim = 64, .has_mask = has_mask});
    if (!has_mask) wanted.ignore_index = -100;
    const LinearLogpCall call = make(wanted);
    const auto all = run(call, wanted);
    ASSERT_EQ(names(), "rows pack main merge");
    const CudaCopy& copy = all[1].copy;
    EXPECT_EQ(copy.skipped_if_all, 1);
    EXPECT_EQ(copy.from, call.hidden.data);
    EXPECT_EQ(copy.rows, all[0].args.rows);
    EXPECT_EQ(copy.num_active, all[0].args.num_active);
    EXPECT_EQ(copy.element_bytes, 16);
    EXPECT_EQ(copy.pitch, 8);
    EXPECT_EQ(fake_.tensor_maps[0].data, call.hidden.data);
    EXPECT_EQ(fake_.tensor_maps[1].data, copy.to);
    EXPECT_EQ(fake_.tensor_maps[1].pitch_bytes, 128u);
    wanted.rows = 256;
    run(wanted);
    EXPECT_EQ(names(), "main merge") << "the weight is read whole in any case";
  }
}

// Rows that a tensor map cannot describe are copied, active or not.
TEST_F(LaunchCudaSm90Test, OtherLayoutsAreCopied) {
  const CudaCase wanted = on_sm90({.rows = 300, .dim = 64, .ignore_index = -100});
  const LinearLogpCall dense = make(wanted);
  const auto expect_copied = [&](const Tensor& hidden, int element_bytes) {
    LinearLogpCall call = dense;
    call.hidden = hidden;
    const auto all = run(call, wanted);
    ASSERT_EQ(names(), "rows pack main merge");
    const CudaCopy& copy = all[1].copy;
    EXPECT_EQ(copy.skipped_if_all, 0);
    EXPECT_EQ(copy.element_bytes, element_bytes);
    ASSERT_EQ(fake_.tensor_maps.size(), 2u);
    EXPECT_EQ(fake_.tensor_maps[0].data, copy.to);
  };
  expect_copied(view(dense.hidden, {64, 1}, 2), 2);            // not on whole 16 bytes
  expect_copied(view(dense.hidden, {1, 300}), 2);              // columns contiguous
  expect_copied(view(dense.hidden, {-64, 1}, 299 * 128), 16);  // backwards
  expect_copied(view(dense.hidden, {65, 1}), 2);
}

TEST_F(LaunchCudaSm90Test, Fp32TakesTheOtherLoop) {
  EXPECT_EQ(run(on_sm90({.dtype = DType::f32})).at(0).threads, 256u);
  EXPECT_TRUE(fake_.tensor_maps.empty());
  run(on_sm90({.dtype = DType::f32, .pass = jit::Pass::bwd}));
  EXPECT_TRUE(fake_.tensor_maps.empty());
}

// Of each product: A and B as the loop reads them, hidden as it lies and gathered.
TEST_F(LaunchCudaSm90Test, TheBackwardsProductsReadMatrices) {
  const CudaCase wanted = on_sm90({.rows = 1000, .vocab = 1000, .dim = 64, .pass = jit::Pass::bwd});
  const LinearLogpCall call = make(wanted);
  const auto all = run(call, wanted);
  ASSERT_EQ(names(), "rows pack grads dz dh join dw");
  const void* const gathered = all[1].copy.to;
  const LinearLogpWave& wave = all[3].args.wave;
  EXPECT_EQ(all[1].copy.skipped_if_all, 1);
  EXPECT_EQ(wave.pitch, 8 * 128);
  const struct {
    const void* data;
    Int64 num_rows, num_cols, pitch, box_rows;
  } maps[] = {
      {call.hidden.data, 1000, 64, 64, 128},  // A of the logits
      {gathered, 1000, 64, 64, 128},
      {call.weight.data, 1000, 64, 64, 192},      // B of the logits
      {wave.grad_logits, 1000, 1024, 1024, 128},  // A of dH
      {wave.grad_logits, 1000, 1024, 1024, 64},   // A of dW
      {call.weight.data, 1000, 64, 64, 64},       // B of dH
      {call.hidden.data, 1000, 64, 64, 64},       // B of dW
      {gathered, 1000, 64, 64, 64},
  };
  ASSERT_EQ(fake_.tensor_maps.size(), std::size(maps));
  for (std::size_t i = 0; i < std::size(maps); ++i) {
    SCOPED_TRACE(i);
    const auto& map = fake_.tensor_maps[i];
    EXPECT_EQ(map.data, maps[i].data);
    EXPECT_EQ(Int64(map.num_rows), maps[i].num_rows);
    EXPECT_EQ(Int64(map.num_cols), maps[i].num_cols);
    EXPECT_EQ(Int64(map.pitch_bytes), maps[i].pitch * 2);
    EXPECT_EQ(Int64(map.box_rows), maps[i].box_rows);
  }
  for (const CudaStep& step : all) {
    const bool is_product = step.name == "dz" || step.name == "dh" || step.name == "dw";
    EXPECT_EQ(step.shared_bytes > 0, is_product) << step.name;
    EXPECT_EQ(step.threads == 384, is_product) << step.name;
  }
  EXPECT_EQ(all[3].blocks, 8u * 8);
  EXPECT_EQ(all[4].blocks, 8u * 8);
  EXPECT_EQ(all[6].blocks, 8u * 1);
}

// fp16: B of dW is the scaled copy, gathered or not.
TEST_F(LaunchCudaSm90Test, TheWeightsGradientOfHalvesReadsTheScaledRows) {
  const auto all = run(on_sm90({.dim = 72, .dtype = DType::f16, .pass = jit::Pass::bwd}));
  ASSERT_EQ(names(), "rows pack grads shift dz dh join dw");
  ASSERT_EQ(fake_.tensor_maps.size(), 7u);
  EXPECT_EQ(fake_.tensor_maps[6].data, all[0].args.hidden_shifted);
  EXPECT_EQ(fake_.tensor_maps[6].num_cols, 72u);
  EXPECT_EQ(fake_.tensor_maps[6].pitch_bytes, 144u);
  EXPECT_EQ(fake_.tensor_maps[6].box_rows, 64u);
}

// What a tensor map cannot describe is copied, and the copy holds the active rows.
TEST_F(LaunchCudaSm90Test, TheBackwardReadsCopiesOfOtherLayouts) {
  const CudaCase wanted = on_sm90({.rows = 300, .dim = 63, .pass = jit::Pass::bwd});
  const auto all = run(wanted);
  ASSERT_EQ(names(), "rows pack pack grads dz dh join dw");
  EXPECT_EQ(all[1].copy.skipped_if_all, 0);
  EXPECT_EQ(all[1].copy.rows, all[0].args.rows);
  ASSERT_EQ(fake_.tensor_maps.size(), 7u) << "one of hidden's rows";
  EXPECT_EQ(fake_.tensor_maps[0].data, all[1].copy.to);
  EXPECT_EQ(fake_.tensor_maps[0].num_cols, 63u);
  EXPECT_EQ(fake_.tensor_maps[0].pitch_bytes, 128u);
  EXPECT_EQ(fake_.tensor_maps[1].data, all[2].copy.to);
  EXPECT_EQ(fake_.tensor_maps[5].data, all[1].copy.to);
  EXPECT_EQ(fake_.tensor_maps[6].data, all[1].copy.to);
}

// Where dZ may be made of the logits there are registers for fewer rows.
TEST_F(LaunchCudaSm90Test, TheBackwardsTileFollowsTheConstants) {
  for (const auto index : {k_linear_logp_softcap, k_linear_logp_entropy}) {
    for (const Int64 value : {Int64{0}, Int64{1}, jit::k_run_time}) {
      CudaCase wanted = on_sm90({.rows = 1000, .pass = jit::Pass::bwd});
      wanted.constants[index] = value;
      const auto all = run(wanted);
      const auto tile = linear_logp_sm90_grad_tile(value != 0);
      EXPECT_EQ(all[3].name, "dz");
      EXPECT_EQ(Int64{all[3].blocks}, std::min<Int64>(132, ceil_div(1000, tile.rows) * 8));
      EXPECT_EQ(Int64{all[3].shared_bytes}, tile.shared_bytes() + kLinearLogpSm90StoreBytes);
      EXPECT_EQ(fake_.tensor_maps[0].box_rows, static_cast<std::uint32_t>(tile.rows));
    }
  }
}

TEST_F(LaunchCudaSm90Test, TheBackwardsGridsAreTheCardOrFewer) {
  CudaCase wanted = on_sm90({.rows = 4096, .vocab = 131072, .dim = 2048, .pass = jit::Pass::bwd});
  for (const int max_sms : {0, 1, 7, 1000}) {
    wanted.max_sms = max_sms;
    for (const CudaStep& step : run(wanted)) {
      if (step.name != "dz" && step.name != "dh" && step.name != "dw") continue;
      EXPECT_EQ(step.blocks, max_sms == 0 ? 132u : static_cast<unsigned>(std::min(max_sms, 132)));
    }
  }
}

TEST_F(LaunchCudaSm90Test, ARefusedMapIsAnErrorOfTheDriver) {
  fake_.fail_call = "cuTensorMapEncodeTiled";
  fake_.fail_code = runtime::cuda::result::invalid_value;
  const auto text = what<DriverError>([&] { run(on_sm90()); });
  EXPECT_NE(text.find("cuTensorMapEncodeTiled"), text.npos) << text;
  EXPECT_NE(text.find("1000 x 64 elements, 64 from row to row"), text.npos) << text;
  EXPECT_TRUE(fake_.launches.empty());
}

}  // namespace
}  // namespace rlk::test
