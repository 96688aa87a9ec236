// SPDX-License-Identifier: Apache-2.0
// Exponentials that a forward on sm_90a keeps: where they lie, and what a backward makes of them,
// beside dZ's memory or in their own.
#include "tests/templates/linear_logp/launch_cuda_fixture.hpp"

#include <algorithm>
#include <array>
#include <iterator>
#include <string>

namespace rlk::test {
namespace {

class LaunchCudaKeptTest : public LaunchCudaTest {
 protected:
  static CudaCase kept(int segments, CudaCase wanted) {
    wanted.target = Target::sm_90a;
    wanted.kept_segments = segments;
    return wanted;
  }
  static CudaCase in_place(int segments, CudaCase wanted) {
    wanted.pass = k_bwd;
    wanted.may_overwrite_kept = true;
    return kept(segments, wanted);
  }
  static CudaCase beside(int segments, CudaCase wanted) {
    wanted.pass = k_bwd;
    return kept(segments, wanted);
  }
};

// Segments of 16,384 columns, 86 leaves: their maxima take 172 columns, padded to 192.
const CudaCase k_large{.rows = 1000, .vocab = 131'072, .dim = 64};
constexpr int k_width = 16'384, k_step = 16'384 + 192;

void expect_kept(const LinearLogpKept& kept, const LinearLogpCall& call, int segments) {
  EXPECT_EQ(kept.data, call.kept.data);
  EXPECT_EQ(kept.num_segments, segments);
  EXPECT_EQ(kept.width, k_width);
  EXPECT_EQ(kept.step, k_step);
  EXPECT_EQ(kept.pitch, segments * k_step);
}

// The first steps of the waves, in launch order.
std::vector<CudaStep> waves_and_turns_of(const std::vector<CudaStep>& all) {
  std::vector<CudaStep> waves;
  std::ranges::copy_if(all, std::back_inserter(waves), [](const CudaStep& step) {
    return step.name == "dz" || step.name == "turn";
  });
  return waves;
}

// Every step of each strip may keep.
TEST_F(LaunchCudaKeptTest, AForwardIsGivenTheMemory) {
  for (const int segments : {4, 8}) {
    CudaCase wanted = kept(segments, k_large);
    wanted.rows = 16384;
    wanted.constants[k_linear_logp_keep] = 1;
    const LinearLogpCall call = make(wanted);
    const auto all = run(call, wanted);
    ASSERT_EQ(names(), "main merge main merge");
    for (const CudaStep& step : all) expect_kept(step.args.kept, call, segments);
  }
  EXPECT_EQ(run(kept(0, k_large)).at(0).args.kept.data, nullptr);
}

// The rounds of shared memory that tiles of 64 rows had more than others are fewer by one.
TEST_F(LaunchCudaKeptTest, AForwardThatMayKeepHasTheMemoryToStoreThrough) {
  const std::array stages{5, 6, 6, 5, 3, 5};
  static_assert(stages.size() == std::size(kLinearLogpSm90Tiles));
  const int limit = shared_limit_bytes(Target::sm_90a);
  for (std::size_t tile = 0; tile < stages.size(); ++tile) {
    for (const Int64 keep : {Int64{1}, jit::k_run_time}) {
      CudaCase wanted = kept(8, {.rows = 1000, .vocab = 8});
      wanted.tile = static_cast<Int64>(tile);
      wanted.constants[k_linear_logp_keep] = keep;
      const auto shared = static_cast<int>(run(wanted).at(0).shared_bytes);
      const int rows = kLinearLogpSm90Tiles[tile].rows;
      EXPECT_EQ(shared, (rows + 192) * 128 * stages[tile] + kLinearLogpSm90StoreBytes) << tile;
      EXPECT_LE(shared, limit) << tile;
      EXPECT_EQ(shared, linear_logp_cuda_shared_bytes(2, Target::sm_90a, jit::Pass::fwd,
                                                      static_cast<int>(tile), true));
    }
  }
}

TEST_F(LaunchCudaKeptTest, DzIsTurnedInTheWorkspace) {
  const CudaCase wanted = beside(8, k_large);
  const LinearLogpCall call = make(wanted);
  const auto all = run(call, wanted);
  ASSERT_EQ(names(), "rows pack grads turn dh join dw");
  for (std::size_t i = 3; i < all.size(); ++i) {
    const LinearLogpCudaArgs& args = all[i].args;
    expect_kept(args.kept, call, 8);
    EXPECT_EQ(args.wave_is_kept, 1);
    EXPECT_NE(args.wave.grad_logits, call.kept.data);
    EXPECT_EQ(args.wave.num_segments, 8);
    EXPECT_EQ(args.wave.num_leaves, 86);
    EXPECT_EQ(args.wave.width, k_width);
    EXPECT_EQ(args.wave.step, k_width);
    EXPECT_EQ(args.wave.pitch, 8 * k_width);
  }
  const auto& dz = fake_.tensor_maps.at(3);
  EXPECT_EQ(dz.data, all[3].args.wave.grad_logits);
  EXPECT_EQ(dz.num_cols, std::uint64_t{8} * k_width);
}

// No dZ is in the workspace, which the fixture checks to hold nothing that no step uses.
TEST_F(LaunchCudaKeptTest, DzIsTurnedInPlace) {
  const CudaCase wanted = in_place(8, k_large);
  const LinearLogpCall call = make(wanted);
  const auto all = run(call, wanted);
  ASSERT_EQ(names(), "rows pack grads turn dh join dw");
  EXPECT_LT(workspace_.requests.at(0), std::size_t{8} << 20);
  for (std::size_t i = 3; i < all.size(); ++i) {
    const LinearLogpCudaArgs& args = all[i].args;
    expect_kept(args.kept, call, 8);
    EXPECT_EQ(args.wave_is_kept, 1);
    EXPECT_EQ(args.wave.grad_logits, call.kept.data);
    EXPECT_EQ(args.wave.num_segments, 8);
    EXPECT_EQ(args.wave.width, k_width);
    EXPECT_EQ(args.wave.step, k_step);
    EXPECT_EQ(args.wave.pitch, 8 * k_step);
  }
  for (const std::size_t i : {3, 4}) {  // A of dH, of dW
    const auto& map = fake_.tensor_maps.at(i);
    EXPECT_EQ(map.data, call.kept.data);
    EXPECT_EQ(map.num_rows, 1000u);
    EXPECT_EQ(map.num_cols, std::uint64_t{8} * k_step);
    EXPECT_EQ(map.pitch_bytes, std::uint64_t{8} * k_step * 2);
    EXPECT_EQ(map.box_rows, i == 3 ? 128u : 64u);
  }
}

// The segments that were not kept are computed, where nothing is kept any more.
TEST_F(LaunchCudaKeptTest, LaterWavesAreComputedIntoTheSameMemory) {
  for (const bool is_in_place : {true, false}) {
    const CudaCase wanted = is_in_place ? in_place(4, k_large) : beside(4, k_large);
    const LinearLogpCall call = make(wanted);
    const auto all = run(call, wanted);
    ASSERT_EQ(names(), "rows pack grads turn dh join dw dz dh join dw");
    const int step = is_in_place ? k_step : k_width;
    for (std::size_t i = 3; i < all.size(); ++i) {
      const bool is_first = i < 7;
      const LinearLogpCudaArgs& args = all[i].args;
      expect_kept(args.kept, call, 4);
      EXPECT_EQ(args.wave_is_kept, is_first ? 1 : 0);
      EXPECT_EQ(args.wave.first_segment, is_first ? 0 : 4);
      EXPECT_EQ(args.wave.num_segments, 4);
      EXPECT_EQ(args.wave.step, step);
      EXPECT_EQ(args.wave.pitch, 4 * step);
      EXPECT_EQ(args.wave.grad_logits == call.kept.data, is_in_place);
      EXPECT_EQ(args.wave.grad_logits, all[3].args.wave.grad_logits);
      // The first half's sums wait for the second's.
      EXPECT_EQ(args.add_levels, is_first ? 0 : 1);
      EXPECT_EQ(args.to_level, is_first ? 0 : -1);
    }
    EXPECT_EQ(Int64{all[7].blocks}, std::min<Int64>(132, 8 * 4 * 86));
  }
}

TEST_F(LaunchCudaKeptTest, AVocabularyOfFewSegments) {
  for (const int segments : {4, 6}) {  // of 6
    const auto waves =
        waves_and_turns_of(run(in_place(segments, {.rows = 300, .vocab = 17, .dim = 8})));
    ASSERT_EQ(waves.size(), segments == 6 ? 1u : 2u);
    EXPECT_EQ(waves[0].name, "turn");
    EXPECT_EQ(waves[0].args.wave.num_segments, segments);
    EXPECT_EQ(waves[0].args.wave.step, 64 + 64);
    if (segments == 6) continue;
    EXPECT_EQ(waves[1].name, "dz");
    EXPECT_EQ(waves[1].args.wave.first_segment, 4);
    EXPECT_EQ(waves[1].args.wave.num_segments, 2);
  }
}

// Beside what is kept a budget may hold fewer segments at once; in place it has no say.
TEST_F(LaunchCudaKeptTest, ABudgetOfFewerSegmentsThanAreKept) {
  const auto kinds = [&](CudaCase wanted) {
    wanted.budget_mib = 128;
    std::string all;
    int next = 0;
    for (const CudaStep& step : waves_and_turns_of(run(wanted))) {
      const LinearLogpWave& wave = step.args.wave;
      EXPECT_EQ(wave.first_segment, next);
      EXPECT_EQ(step.args.wave_is_kept, step.name == "turn" ? 1 : 0);
      next += wave.num_segments;
      all += std::to_string(wave.num_segments) + " " + step.name + " ";
    }
    EXPECT_EQ(next, 8);
    return all;
  };
  EXPECT_EQ(kinds(beside(8, k_large)), "2 turn 2 turn 2 turn 2 turn ");
  EXPECT_EQ(kinds(beside(4, k_large)), "2 turn 2 turn 2 dz 2 dz ");
  EXPECT_EQ(kinds(in_place(8, k_large)), "8 turn ");
  EXPECT_EQ(kinds(in_place(4, k_large)), "4 turn 4 dz ");
}

// Where a budget holds less than a segment: kept columns of a piece begin where its leaves do.
TEST_F(LaunchCudaKeptTest, PiecesOfASegmentThatIsKept) {
  CudaCase wanted = beside(4, {.rows = 4096, .vocab = 100'640, .dim = 64});
  wanted.budget_mib = 24;
  const auto waves = waves_and_turns_of(run(wanted));
  ASSERT_EQ(waves.size(), 8u * 3);
  for (std::size_t i = 0; i < waves.size(); ++i) {
    const LinearLogpWave& wave = waves[i].args.wave;
    EXPECT_EQ(waves[i].name, i < 4 * 3 ? "turn" : "dz");
    EXPECT_EQ(wave.first_segment, static_cast<int>(i / 3));
    EXPECT_EQ(wave.first_leaf, static_cast<int>(i % 3) * 22);
    EXPECT_EQ(wave.width, i % 3 == 2 ? 4160 : 4224);
    EXPECT_EQ(waves[i].args.kept.width, 12'608);
  }
}

// Sums of a strip have 64 MiB, as kept exponentials took the memory of more.
TEST_F(LaunchCudaKeptTest, StripsInPlace) {
  CudaCase wanted = in_place(8, k_large);
  wanted.rows = 4096;
  wanted.dim = 2048;
  const auto all = run(wanted);
  ASSERT_EQ(names(), "rows pack grads turn dh join dh join dh join dh join dw");
  for (std::size_t i = 4; i < 12; ++i) {
    EXPECT_EQ(all[i].args.first_row, static_cast<Int64>((i - 4) / 2) * 1024);
    EXPECT_EQ(all[i].args.strip_rows, 1024);
  }
}

// Eight strips of 256 columns a block, and parts of the rows up to about 2,048 blocks.
TEST_F(LaunchCudaKeptTest, BlocksOfTurn) {
  const struct {
    Int64 rows, vocab;
    int segments;
    unsigned x, y;
  } cases[] = {
      {1, 131'072, 8, 64, 1},
      {16, 131'072, 8, 64, 1},
      {17, 131'072, 8, 64, 2},
      {1000, 131'072, 8, 64, 32},
      {1'000'000, 131'072, 8, 64, 32},
      {1'000'000, 131'072, 4, 32, 64},
      {1000, 8, 8, 1, 63},
      {1000, 8 * 257, 8, 2, 63},
      {1'000'000, 1'048'576, 8, 512, 4},
      {1'000'000, 8'388'608, 8, 4096, 1},
  };
  for (const auto& each : cases) {
    SCOPED_TRACE(testing::Message() << each.rows << " x " << each.vocab);
    const auto wanted = in_place(each.segments, {.rows = each.rows, .vocab = each.vocab, .dim = 8});
    const CudaStep turn = waves_and_turns_of(run(wanted)).at(0);
    EXPECT_EQ(turn.blocks, each.x);
    EXPECT_EQ(turn.blocks_y, each.y);
    EXPECT_EQ(turn.threads, 256u);
    EXPECT_EQ(turn.shared_bytes, 0u);
  }
}

// One counter for each wave, those that are turned too.
TEST_F(LaunchCudaKeptTest, WavesThatAreComputedHaveCounters) {
  const auto waves = waves_and_turns_of(run(in_place(4, k_large)));
  ASSERT_EQ(waves.size(), 2u);
  const unsigned* const first = waves[0].args.next_tile;
  const auto zeroed = std::ranges::find(fake_.memsets, reinterpret_cast<std::uint64_t>(first),
                                        &FakeCuda::Memset::address);
  ASSERT_NE(zeroed, fake_.memsets.end());
  EXPECT_EQ(zeroed->bytes, 2 * sizeof(unsigned));
  EXPECT_EQ(waves[1].args.next_tile, first + 1);
}

TEST_F(LaunchCudaKeptTest, OnlyTheGradientsThatAreWanted) {
  CudaCase wanted = in_place(4, k_large);
  wanted.needs_hidden = false;
  wanted.has_bias = wanted.needs_bias = true;
  run(wanted);
  EXPECT_EQ(names(), "rows pack grads turn dw db dz dw db");
}

}  // namespace
}  // namespace rlk::test
