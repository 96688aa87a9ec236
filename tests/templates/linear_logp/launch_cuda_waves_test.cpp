// SPDX-License-Identifier: Apache-2.0
// What a budget makes of a backward: waves of columns, strips of rows, and the order of its sums,
// which no budget may change.
#include "tests/templates/linear_logp/launch_cuda_fixture.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <map>
#include <set>
#include <utility>

namespace rlk::test {
namespace {

constexpr Int64 k_least_leaves = 24;  // of a wave that is beyond the budget

class LaunchCudaWavesTest : public LaunchCudaTest {
 protected:
  void expect_waves(const std::vector<CudaStep>& all, const CudaCase& wanted);
  void expect_strips(const std::vector<CudaStep>& all, const CudaCase& wanted);
  void expect_budget(const LinearLogpCudaArgs& first, const CudaCase& wanted);
};

LogpLeaves<kLogpLeaf> leaves_of(const CudaCase& wanted) {
  return logp_leaves<kLogpLeaf>(wanted.vocab);
}
int num_segments(const CudaCase& wanted) {
  return leaves_of(wanted).count() / leaves_of(wanted).of_segment();
}

// Of the waves' first steps, in launch order.
std::vector<CudaStep> waves_of(const std::vector<CudaStep>& all) {
  std::vector<CudaStep> waves;
  std::ranges::copy_if(all, std::back_inserter(waves),
                       [](const CudaStep& step) { return step.name == "dz"; });
  return waves;
}

// Each leaf of the vocabulary is in one wave, and its columns of dZ are in one place.
void LaunchCudaWavesTest::expect_waves(const std::vector<CudaStep>& all, const CudaCase& wanted) {
  const auto shape = leaves_of(wanted);
  const Int64 tile_rows = wanted.dtype == DType::f32 ? 64 : 256;
  const Int64 tile_cols = 128;
  const Int64 grad_rows = wanted.dtype == DType::f32 ? 128 : 256;
  const Int64 dim_tiles = ceil_div(wanted.dim, tile_cols);
  std::set<std::pair<int, int>> seen;  // segment, leaf of it
  const CudaStep* dz = nullptr;
  for (const CudaStep& step : all) {
    const LinearLogpWave& wave = step.args.wave;
    if (step.name == "dz") {
      dz = &step;
      for (int s = wave.first_segment; s < wave.first_segment + wave.num_segments; ++s) {
        Int64 cols = 0;
        for (int i = wave.first_leaf; i < wave.first_leaf + wave.num_leaves; ++i) {
          ASSERT_TRUE(seen.emplace(s, i).second) << "leaf " << i << " of segment " << s;
          cols += shape.at(Int64{s} * shape.of_segment() + i).cols;
        }
        ASSERT_LE(cols, wave.width);
      }
      // Of a segment that is whole.
      const Int64 left = shape.segment() - Int64{wave.first_leaf} * kLogpLeaf;
      ASSERT_EQ(wave.width, round_up(std::min(left, Int64{wave.num_leaves} * kLogpLeaf), 64));
      ASSERT_GE(wave.step, wave.width);
      ASSERT_LE(wave.num_segments * wave.step, wave.pitch);
      ASSERT_EQ(Int64{step.blocks},
                ceil_div(wanted.rows, tile_rows) * wave.num_segments * wave.num_leaves);
    }
    if (step.name != "dh" && step.name != "dw" && step.name != "db") continue;
    ASSERT_NE(dz, nullptr);
    ASSERT_EQ(wave.first_segment, dz->args.wave.first_segment);
    ASSERT_EQ(wave.num_segments, dz->args.wave.num_segments);
    ASSERT_EQ(wave.first_leaf, dz->args.wave.first_leaf);
    ASSERT_EQ(wave.num_leaves, dz->args.wave.num_leaves);
    ASSERT_EQ(wave.width, dz->args.wave.width);
    ASSERT_EQ(wave.step, dz->args.wave.step);
    ASSERT_EQ(wave.pitch, dz->args.wave.pitch);
    if (step.name == "dh") {
      ASSERT_EQ(Int64{step.blocks},
                ceil_div(step.args.strip_rows, grad_rows) * wave.num_segments * dim_tiles);
    } else if (step.name == "dw") {
      ASSERT_EQ(Int64{step.blocks},
                wave.num_segments * ceil_div(wave.width, grad_rows) * dim_tiles);
    } else {
      ASSERT_EQ(Int64{step.blocks}, Int64{wave.num_segments} * wave.width / 32);
    }
  }
  EXPECT_EQ(std::ssize(seen), shape.count());
  const auto count = [&](const char* step) {
    return std::ranges::count(all, step, &CudaStep::name);
  };
  EXPECT_EQ(count("dw"), wanted.needs_weight ? count("dz") : 0);
  EXPECT_EQ(count("db"), wanted.needs_bias ? count("dz") : 0);
}

// In each wave the strips cover each row once; all but the last begin at whole tiles.
void LaunchCudaWavesTest::expect_strips(const std::vector<CudaStep>& all, const CudaCase& wanted) {
  Int64 next = wanted.rows;
  const CudaStep* dh = nullptr;
  for (const CudaStep& step : all) {
    const LinearLogpCudaArgs& args = step.args;
    if (step.name == "dz") {
      ASSERT_GE(next, wanted.rows) << "rows of the wave before";
      if (wanted.needs_hidden) next = 0;
    } else if (step.name == "dh") {
      ASSERT_EQ(args.first_row, next);
      ASSERT_LT(args.first_row, wanted.rows);
      ASSERT_GT(args.strip_rows, 0);
      ASSERT_TRUE(args.strip_rows % kCopyTileRows == 0 || args.strip_rows == wanted.rows);
      next += args.strip_rows;
      dh = &step;
    } else if (step.name == "join") {
      ASSERT_EQ(args.first_row, dh->args.first_row);
      ASSERT_EQ(Int64{step.blocks}, args.strip_rows);
    }
  }
  EXPECT_GE(next, wanted.rows);
}

// The workspace of dZ and of the sums is within the budget where that can be, and otherwise no way
// of whole segments would be.
void LaunchCudaWavesTest::expect_budget(const LinearLogpCudaArgs& first, const CudaCase& wanted) {
  const auto shape = leaves_of(wanted);
  const Int64 budget = Int64{wanted.budget_mib} << 20;
  const Int64 rows = wanted.rows, few_rows = std::min<Int64>(rows, 1024);
  const Int64 element_bytes = static_cast<Int64>(size_bytes(wanted.dtype));
  const Int64 row_sums = wanted.needs_hidden ? round_up(wanted.dim, 4) * 4 : 0;
  const auto levels = [&](int segments) {
    const auto waves = static_cast<std::uint64_t>(ceil_div(num_segments(wanted), segments));
    return static_cast<Int64>(std::bit_width(waves - 1));
  };
  const LinearLogpWave& wave = first.wave;
  const Int64 used = rows * wave.pitch * element_bytes +
                     wave.num_segments * first.strip_rows * row_sums +
                     levels(wave.num_segments) * rows * row_sums;
  const auto least = [&](int most_segments) {
    const Int64 segments = std::min(most_segments, num_segments(wanted));
    return rows * segments * round_up(shape.segment(), 64) * element_bytes +
           (segments * few_rows + levels(most_segments) * rows) * row_sums;
  };
  EXPECT_EQ(first.segment_sums != nullptr, wanted.needs_hidden);
  EXPECT_EQ(first.wave_sums != nullptr,
            wanted.needs_hidden && wave.num_segments < num_segments(wanted));
  if (used > budget) {
    EXPECT_EQ(wave.num_segments, 1);
    for (const int segments : {8, 4, 2, 1}) EXPECT_GT(least(segments), budget) << segments;
    EXPECT_LE(wave.num_leaves, k_least_leaves);
    if (wave.num_leaves == shape.of_segment() && wanted.needs_hidden) {
      EXPECT_LE(first.strip_rows, few_rows);
    }
  }
  // As many segments as fit with dZ in half of it.
  for (const int segments : {8, 4, 2}) {
    const Int64 in_wave = std::min(segments, num_segments(wanted));
    if (wave.num_segments >= in_wave) break;
    const Int64 grad_logits = rows * in_wave * round_up(shape.segment(), 64) * element_bytes;
    EXPECT_TRUE(least(segments) > budget || grad_logits > budget / 2) << segments;
  }
  // Of like size.
  const Int64 pieces = ceil_div(shape.of_segment(), wave.num_leaves);
  EXPECT_EQ(wave.num_leaves, ceil_div(shape.of_segment(), pieces));
  if (pieces > 1) {
    EXPECT_EQ(wave.num_segments, 1);
    EXPECT_EQ(first.strip_rows, wanted.needs_hidden ? rows : first.strip_rows)
        << "their sums wait for the next piece";
  }
}

TEST_F(LaunchCudaWavesTest, EachColumnAndRowOnceWithinTheBudget) {
  for (const int budget_mib : {1, 3, 16, 64, 256, 768, 4096, 1 << 20}) {
    for (const CudaCase& sizes : {CudaCase{.rows = 4096, .vocab = 131072, .dim = 2048},
                                  CudaCase{.rows = 4096, .vocab = 50257, .dim = 2047},
                                  CudaCase{.rows = 262144, .vocab = 248320, .dim = 2048},
                                  CudaCase{.rows = 1, .vocab = 128256, .dim = 4096},
                                  CudaCase{.rows = 129, .vocab = 6283, .dim = 9},
                                  CudaCase{.rows = 262144, .vocab = 30000, .dim = 64},
                                  CudaCase{.rows = 1000, .vocab = 1537, .dim = 200}}) {
      for (const bool needs_hidden : {true, false}) {
        for (const DType dtype : {DType::bf16, DType::f32, DType::f16}) {
          CudaCase wanted = sizes;
          wanted.dtype = dtype;
          wanted.pass = k_bwd;
          wanted.has_bias = wanted.needs_bias = true;
          wanted.needs_hidden = needs_hidden;
          wanted.budget_mib = budget_mib;
          SCOPED_TRACE(testing::Message()
                       << sizes.rows << " x " << sizes.dim << " x " << sizes.vocab << " in "
                       << budget_mib << " MiB, " << name(dtype) << needs_hidden);
          const auto all = run(wanted);
          expect_waves(all, wanted);
          expect_strips(all, wanted);
          expect_budget(waves_of(all).at(0).args, wanted);
        }
      }
    }
  }
}

TEST_F(LaunchCudaWavesTest, TheLeastVocabularies) {
  for (Int64 vocab = 1; vocab <= 17; ++vocab) {
    for (const Int64 rows : {1, 300, 300'000}) {
      for (const int budget_mib : {1, 64, 300, 4096}) {
        const CudaCase wanted{.rows = rows,
                              .vocab = vocab,
                              .dim = 8,
                              .pass = k_bwd,
                              .has_bias = true,
                              .needs_bias = true,
                              .budget_mib = budget_mib};
        SCOPED_TRACE(testing::Message() << rows << " x " << vocab << ", " << budget_mib << " MiB");
        const auto all = run(wanted);
        expect_waves(all, wanted);
        expect_strips(all, wanted);
        expect_budget(waves_of(all).at(0).args, wanted);
      }
    }
  }
}

// Where a budget holds less than a segment: the least pieces, a third of its 66 leaves.
TEST_F(LaunchCudaWavesTest, PiecesOfASegment) {
  const CudaCase wanted{.rows = 4096,
                        .vocab = 100'640,
                        .dim = 64,
                        .pass = k_bwd,
                        .has_bias = true,
                        .needs_bias = true,
                        .budget_mib = 24};
  const auto all = run(wanted);
  const auto waves = waves_of(all);
  ASSERT_EQ(waves.size(), 8u * 3);
  for (std::size_t i = 0; i < waves.size(); ++i) {
    const LinearLogpWave& wave = waves[i].args.wave;
    EXPECT_EQ(wave.first_segment, static_cast<int>(i / 3));
    EXPECT_EQ(wave.num_segments, 1);
    EXPECT_EQ(wave.first_leaf, static_cast<int>(i % 3) * 22);
    EXPECT_EQ(wave.num_leaves, 22);
    // 12580 columns a segment: 4224, 4224 and 4132.
    EXPECT_EQ(wave.width, i % 3 == 2 ? 4160 : 4224);
    EXPECT_EQ(wave.pitch, 4224);
  }
  // Sums of a segment are joined where it ends.
  std::string expected = "rows pack grads";
  for (int segment = 0; segment < 8; ++segment) {
    expected += " dz dh dw db dz dh dw db dz dh join dw db";
  }
  EXPECT_EQ(names(), expected);
}

// The sums of one row of grad_hidden as the steps make them, written down as terms.
class Sums {
 public:
  explicit Sums(Int64 row) : row_(row) {}

  void take(const CudaStep& step) {
    if (step.name == "dh") add_pieces(step.args);
    if (step.name == "join") join(step.args);
  }
  const std::string& result() const { return result_; }

 private:
  static bool has_row(const LinearLogpCudaArgs& args, Int64 row) {
    return args.first_row <= row && row < args.first_row + args.strip_rows;
  }
  void add_pieces(const LinearLogpCudaArgs& args) {
    const LinearLogpWave& wave = args.wave;
    for (int s = 0; s < wave.num_segments; ++s) {
      Segment& sum = segments_[static_cast<std::size_t>(s)];
      if (!has_row(args, row_)) {
        sum = {};  // another row's now
        continue;
      }
      if (wave.first_leaf == 0) sum = {wave.first_segment + s, 0};
      EXPECT_EQ(sum.number, wave.first_segment + s);
      EXPECT_EQ(sum.num_leaves, wave.first_leaf) << "in the order of columns";
      sum.num_leaves += wave.num_leaves;
    }
  }
  void join(const LinearLogpCudaArgs& args) {
    if (!has_row(args, row_)) return;
    const int num_leaves = args.leaves().of_segment();
    std::vector<std::string> terms;
    for (int s = 0; s < args.wave.num_segments; ++s) {
      const Segment& sum = segments_[static_cast<std::size_t>(s)];
      EXPECT_EQ(sum.number, args.wave.first_segment + s);
      EXPECT_EQ(sum.num_leaves, num_leaves) << "of a whole segment";
      terms.push_back(std::to_string(sum.number));
    }
    std::string sum = tree(terms, 8);
    for (int level = 0; level < 8; ++level) {
      if ((args.add_levels >> level & 1) == 0) continue;
      EXPECT_TRUE(waiting_.contains(level)) << level;
      sum = "(" + waiting_[level] + "+" + sum + ")";
      waiting_.erase(level);
    }
    EXPECT_TRUE(result_.empty()) << "it is written once";
    if (args.to_level < 0) {
      EXPECT_TRUE(waiting_.empty());
      result_ = sum;
    } else {
      EXPECT_FALSE(waiting_.contains(args.to_level)) << "it still waits";
      waiting_[args.to_level] = sum;
    }
  }

 public:
  // Of at most `most` terms: the first half of the places, then the others.
  static std::string tree(const std::vector<std::string>& terms, std::size_t most) {
    if (most == 1) return terms[0];
    const std::size_t half = most / 2;
    if (terms.size() <= half) return tree(terms, half);
    const auto middle = terms.begin() + static_cast<std::ptrdiff_t>(half);
    return "(" + tree({terms.begin(), middle}, half) + "+" + tree({middle, terms.end()}, half) +
           ")";
  }

 private:
  struct Segment {
    int number = -1, num_leaves = 0;
  };
  Int64 row_;
  std::array<Segment, kLogpSegments> segments_;
  std::map<int, std::string> waiting_;
  std::string result_;
};

std::string tree_of(int num_segments) {
  std::vector<std::string> terms;
  for (int i = 0; i < num_segments; ++i) terms.push_back(std::to_string(i));
  return Sums::tree(terms, kLogpSegments);
}

TEST_F(LaunchCudaWavesTest, SumsOfSegmentsJoinAsOneTree) {
  EXPECT_EQ(tree_of(8), "(((0+1)+(2+3))+((4+5)+(6+7)))");
  EXPECT_EQ(tree_of(6), "(((0+1)+(2+3))+(4+5))");
  EXPECT_EQ(tree_of(5), "(((0+1)+(2+3))+4)");
  std::set<std::pair<int, int>> seen;  // segments of the vocabulary, of a wave
  bool saw_strips = false, saw_pieces = false;
  // 1 to 8 segments; those of 40,000 columns are cut into pieces as well.
  for (const Int64 vocab : {1, 2, 3, 4, 5, 6, 7, 8, 17, 40'000}) {
    for (const int budget_mib : {1, 16, 32, 48, 64, 80, 112, 160, 256, 1024, 8192}) {
      const CudaCase wanted{
          .rows = 100'000, .vocab = vocab, .dim = 8, .pass = k_bwd, .budget_mib = budget_mib};
      SCOPED_TRACE(testing::Message() << vocab << " in " << budget_mib << " MiB");
      const auto all = run(wanted);
      const LinearLogpCudaArgs& first = waves_of(all).at(0).args;
      const int segments = num_segments(wanted);
      seen.emplace(segments, first.wave.num_segments);
      saw_strips |= first.strip_rows < wanted.rows;
      saw_pieces |= first.wave.num_leaves < leaves_of(wanted).of_segment();
      for (const Int64 row : {Int64{0}, wanted.rows / 2, wanted.rows - 1}) {
        Sums sums(row);
        for (const CudaStep& step : all) sums.take(step);
        EXPECT_EQ(sums.result(), tree_of(segments)) << row;
      }
    }
  }
  for (int segments = 1; segments <= 8; ++segments) {
    for (const int wave : {1, 2, 4, 8}) {
      EXPECT_TRUE(seen.contains({segments, std::min(wave, segments)})) << segments << ", " << wave;
    }
  }
  EXPECT_TRUE(saw_strips);
  EXPECT_TRUE(saw_pieces);
}

// The loop of sm_90a counts tiles: one counter a wave, all zeroed before the first.
TEST_F(LaunchCudaWavesTest, EveryWaveHasItsCounter) {
  const CudaCase wanted{.rows = 4096,
                        .vocab = 131072,
                        .dim = 64,
                        .pass = k_bwd,
                        .needs_hidden = false,
                        .target = Target::sm_90a,
                        .budget_mib = 256};
  const auto waves = waves_of(run(wanted));
  ASSERT_EQ(waves.size(), 8u);
  ASSERT_EQ(fake_.memsets.size(), 1u);
  EXPECT_EQ(fake_.memsets[0].address, reinterpret_cast<std::uint64_t>(waves[0].args.next_tile));
  EXPECT_EQ(fake_.memsets[0].bytes, 8 * sizeof(unsigned));
  for (std::size_t i = 0; i < waves.size(); ++i) {
    EXPECT_EQ(waves[i].args.next_tile, waves[0].args.next_tile + i);
  }
}

}  // namespace
}  // namespace rlk::test
