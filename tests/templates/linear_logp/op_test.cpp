// SPDX-License-Identifier: Apache-2.0
// Which tile a call takes on sm_90a, which others give its bits, and what a model's calls ask for.
#include "templates/linear_logp/op.hpp"

#include "jit/parse_specialization.hpp"
#include "jit/warm/warm.hpp"
#include "templates/registry.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <set>
#include <string>

namespace rlk {
namespace {

const jit::Op& op() { return templates::linear_logp_op; }

struct Asked {
  std::int64_t rows = 1000;
  DType dtype = DType::bf16;
  jit::Pass pass = jit::Pass::fwd;
  Target target = Target::sm_90a;
  std::optional<int> tile = std::nullopt;
  jit::Tuning tuning = {};
};

std::string kernel(const Asked& asked) {
  LinearLogpCall call;
  call.op = &op();
  call.pass = asked.pass;
  call.tile = asked.tile;
  const Device device{Device::Kind::cuda, 0};
  call.hidden = dense_tensor(nullptr, asked.dtype, device, std::array{asked.rows, std::int64_t{8}});
  call.weight = dense_tensor(nullptr, asked.dtype, device, std::array<std::int64_t, 2>{10, 8});
  call.target = dense_tensor(nullptr, DType::i64, device, std::array{asked.rows});
  return op().specialize(call, asked.target, asked.tuning).text();
}

std::string fwd(const std::string& tile, const std::string& x = "bf16") {
  return "linear_logp.fwd[x=" + x + " V=10 D=8" + (tile.empty() ? "" : " tile=" + tile) +
         "]@sm_90a";
}

TEST(LinearLogpOp, RowsEnterByTheirClass) {
  for (const std::int64_t rows : {0, 1, 64}) EXPECT_EQ(kernel({rows}), fwd("64-dynamic"));
  for (const std::int64_t rows : {65, 256}) EXPECT_EQ(kernel({rows}), fwd("64-static"));
  for (const std::int64_t rows : {257, 100000}) EXPECT_EQ(kernel({rows}), fwd(""));
  EXPECT_EQ(kernel({.rows = 1, .dtype = DType::f16}), fwd("64-dynamic", "f16"));
}

TEST(LinearLogpOp, ATuningChoosesAndACallOverridesIt) {
  const jit::Tuning tuning{{3, jit::Tuning::k_own, 4}};
  EXPECT_EQ(kernel({.rows = 1, .tuning = tuning}), fwd("128-static"));
  EXPECT_EQ(kernel({.rows = 100, .tuning = tuning}), fwd("64-static"));
  EXPECT_EQ(kernel({.rows = 1000, .tuning = tuning}), fwd("256-cooperative"));
  EXPECT_EQ(kernel({.rows = 1, .tile = 0, .tuning = tuning}), fwd(""));
  EXPECT_EQ(kernel({.rows = 1, .tile = 2}), fwd("64-static"));
}

// One kernel there, whatever was chosen.
TEST(LinearLogpOp, OtherLoopsHaveNoTiles) {
  for (const auto& asked : {Asked{.dtype = DType::f32}, Asked{.pass = jit::Pass::bwd},
                            Asked{.target = Target::sm_80}, Asked{.target = Target::x86_64_v3}}) {
    Asked tuned = asked;
    tuned.rows = 1;
    tuned.tuning = {{1, 2, 3}};
    tuned.tile = 2;
    EXPECT_EQ(kernel(tuned).find("tile"), std::string::npos) << kernel(tuned);
    EXPECT_EQ(kernel(tuned), kernel(asked));
    EXPECT_TRUE(
        op().alternatives(jit::parse_specialization(kernel(asked), templates::ops())).empty());
  }
}

TEST(LinearLogpOp, AlternativesAreTheOtherTiles) {
  for (const std::string tile : {"", "64-static"}) {
    const auto spec = jit::parse_specialization(fwd(tile), templates::ops());
    std::set<std::string> names = {spec.text()};
    for (const auto& other : op().alternatives(spec)) names.insert(other.text());
    EXPECT_EQ(names, (std::set<std::string>{fwd(""), fwd("64-dynamic"), fwd("64-static"),
                                            fwd("128-static"), fwd("256-cooperative"),
                                            fwd("128-cluster")}));
    EXPECT_TRUE(op().alternatives(spec.generic()).empty());
  }
  for (const auto& other : op().alternatives(jit::parse_specialization(
           "linear_logp.fwd[x=f16 V=10 D=8 softcap=yes]@sm_90a", templates::ops()))) {
    EXPECT_TRUE(other.text().starts_with("linear_logp.fwd[x=f16 V=10 D=8 softcap=yes tile="));
  }
}

TEST(LinearLogpOp, TilesHaveNames) {
  const std::set<std::string_view> names(op().tile_names.begin(), op().tile_names.end());
  EXPECT_EQ(names.size(), op().tile_names.size());
  EXPECT_FALSE(names.contains(""));
}

// What a forward's gradients ask for is what its backward's call does.
TEST(LinearLogpOp, TheGradientsOfAForwardAreItsBackward) {
  const Device device{Device::Kind::cuda, 0};
  const auto names = [&](bool entropy, bool entropy_grad, Target target) {
    LinearLogpCall call;
    call.op = &op();
    call.weight = dense_tensor(nullptr, DType::bf16, device, std::array<std::int64_t, 2>{10, 8});
    call.hidden = call.weight;
    call.target = dense_tensor(nullptr, DType::i64, device, std::array<std::int64_t, 1>{10});
    call.kept = call.weight;
    call.softcap = 30.0;
    call.argmax = call.target;
    if (entropy) call.entropy = call.weight;
    call.entropy_grad = entropy_grad;
    std::vector<std::string> found;
    for (const auto& kernel : op().gradients(call, target, {})) found.push_back(kernel.text());
    return found;
  };
  using Names = std::vector<std::string>;
  const std::string head = "linear_logp.bwd[x=bf16 V=10 D=8 softcap=yes";
  EXPECT_EQ(names(false, true, Target::sm_90a), Names{head + "]@sm_90a"});
  EXPECT_EQ(names(true, false, Target::sm_90a), Names{head + "]@sm_90a"});
  EXPECT_EQ(names(true, true, Target::sm_90a), Names{head + " entropy=yes]@sm_90a"});
  EXPECT_EQ(names(true, true, Target::x86_64_v3), Names{head + " entropy=yes]@x86-64-v3"});
}

std::vector<std::string> model_kernels(DType dtype, jit::Pass pass, Target target,
                                       const jit::Tuning& tuning, bool entropy = false) {
  std::vector<std::string> names;
  for (const auto& kernel : op().model_variants({.vocab = 10, .hidden = 8, .entropy = entropy},
                                                dtype, pass, target, tuning)) {
    names.push_back(kernel.text());
  }
  return names;
}

TEST(LinearLogpOp, AModelAsksForTheTilesOfAllRowsEachOnce) {
  using Names = std::vector<std::string>;
  const auto of_fwd = [](const jit::Tuning& tuning, DType dtype = DType::bf16) {
    return model_kernels(dtype, jit::Pass::fwd, Target::sm_90a, tuning);
  };
  EXPECT_EQ(of_fwd({}), (Names{fwd("64-dynamic"), fwd("64-static"), fwd("")}));
  EXPECT_EQ(of_fwd({{3, 3, 3}}), Names{fwd("128-static")});
  EXPECT_EQ(of_fwd({{0, 1, jit::Tuning::k_own}}), (Names{fwd(""), fwd("64-dynamic")}));
  EXPECT_EQ(of_fwd({}, DType::f32).size(), 1u);
  EXPECT_EQ(model_kernels(DType::bf16, jit::Pass::bwd, Target::sm_90a, {}).size(), 1u);
  EXPECT_EQ(model_kernels(DType::bf16, jit::Pass::fwd, Target::sm_80, {}).size(), 1u);
  EXPECT_EQ(model_kernels(DType::bf16, jit::Pass::fwd, Target::sm_90a, {}, true).size(), 6u);
}

TEST(LinearLogpOp, AShardIsCutAsTheWholeWhereItHasWholeSegments) {
  const auto segment = [](std::int64_t vocab, int num_shards) {
    const jit::ModelShape shape{.vocab = vocab, .hidden = 8, .num_shards = num_shards};
    const auto kernels =
        op().model_variants(shape, DType::f32, jit::Pass::bwd, Target::x86_64_v3, {});
    return kernels.at(0).value_of("segment");
  };
  EXPECT_EQ(segment(64064, 2), 16016);
  EXPECT_EQ(segment(16032, 8), 16032);
  EXPECT_EQ(segment(128, 1), jit::k_run_time);
  EXPECT_EQ(segment(128, 16), jit::k_run_time) << "a shard has half a segment";
  EXPECT_EQ(segment(6, 2), jit::k_run_time) << "8 does not divide 12";
}

TEST(LinearLogpOp, OnePassAfterTheOtherIsBoth) {
  jit::WarmPlan plan{.shapes = {{.vocab = 10, .hidden = 8}},
                     .ops = {&op()},
                     .passes = {jit::Pass::fwd, jit::Pass::bwd},
                     .dtypes = {DType::bf16},
                     .targets = {Target::sm_90a},
                     .keep = true,
                     .tunings = {}};
  const auto both = jit::kernels_of(plan);
  plan.passes = {jit::Pass::fwd};
  auto apart = jit::kernels_of(plan);
  plan.passes = {jit::Pass::bwd};
  for (const auto& kernel : jit::kernels_of(plan)) apart.push_back(kernel);
  EXPECT_EQ(apart, both);
  EXPECT_EQ(both.size(), 7u);
}

// Another kernel where the loop of sm_90a makes the products.
TEST(LinearLogpOp, ATrainingsForwardMayKeepExponentials) {
  const auto kernels = [](jit::ModelShape shape, jit::Pass pass, Target target = Target::sm_90a) {
    std::vector<std::string> names;
    for (const auto& kernel : op().model_variants(shape, DType::bf16, pass, target, {})) {
      names.push_back(kernel.text());
    }
    return names;
  };
  using Names = std::vector<std::string>;
  const jit::ModelShape trained{.vocab = 10, .hidden = 8, .keep = true};
  const std::string keeping = "linear_logp.fwd[x=bf16 V=10 D=8 keep=yes";
  EXPECT_EQ(
      kernels(trained, jit::Pass::fwd),
      (Names{fwd("64-dynamic"), fwd("64-static"), fwd(""), keeping + " tile=64-dynamic]@sm_90a",
             keeping + " tile=64-static]@sm_90a", keeping + "]@sm_90a"}));
  EXPECT_EQ(kernels({.vocab = 10, .hidden = 8}, jit::Pass::fwd).size(), 3u);
  EXPECT_EQ(kernels(trained, jit::Pass::bwd).size(), 1u);
  EXPECT_EQ(kernels(trained, jit::Pass::fwd, Target::sm_80).size(), 1u);
  EXPECT_EQ(kernels(trained, jit::Pass::fwd, Target::x86_64_v3).size(), 1u);
  jit::ModelShape capped = trained;
  capped.numbers = {{"softcap", 30.0}};
  EXPECT_EQ(kernels(capped, jit::Pass::fwd).size(), 3u);
}

LinearLogpCall kept_call(std::int64_t rows, std::int64_t vocab, DType dtype, Device::Kind kind) {
  LinearLogpCall call;
  call.op = &op();
  call.device = {kind, 0};
  call.hidden = dense_tensor(nullptr, dtype, call.device, std::array<std::int64_t, 2>{rows, 8});
  call.weight = dense_tensor(nullptr, dtype, call.device, std::array<std::int64_t, 2>{vocab, 8});
  call.target = dense_tensor(nullptr, DType::i64, call.device, std::array{rows});
  return call;
}

TEST(LinearLogpOp, ABudgetHoldsAllSegmentsOrHalfOfThem) {
  constexpr std::int64_t k_vocab = 131072, k_rows = 4096;  // 128 MiB a segment of 16 bits
  LinearLogpCall call = kept_call(k_rows, k_vocab, DType::bf16, Device::Kind::cuda);
  const auto segments = [&](std::optional<std::int64_t> own, std::int64_t set) {
    call.saved_mib = own;
    call.kept = linear_logp_kept_tensor(call, set);
    return linear_logp_kept_segments(call);
  };
  EXPECT_EQ(segments({}, 0), 0);
  EXPECT_EQ(segments(511, 0), 0);
  EXPECT_EQ(segments(512, 0), 4);
  // And an fp32 maximum of each leaf of 192 columns, in whole units of 64 elements.
  EXPECT_EQ(call.kept.shape[1], 4 * (k_vocab / 8 + 192));
  EXPECT_EQ(call.kept.dtype, DType::bf16);
  EXPECT_EQ(segments(1023, 0), 4);
  EXPECT_EQ(segments(1024, 0), 8);
  EXPECT_EQ(segments(1 << 20, 0), 8);
  EXPECT_EQ(segments({}, 512), 4);
  EXPECT_EQ(segments(0, 512), 0);
  call.entropy_grad = true;
  EXPECT_EQ(segments(1 << 20, 0), 0);
}

TEST(LinearLogpOp, KeptSegmentsBeginAtWholeUnits) {
  LinearLogpCall call = kept_call(3, 17, DType::f16, Device::Kind::cpu);
  call.saved_mib = 1;
  call.kept = linear_logp_kept_tensor(call, 0);
  EXPECT_EQ(call.kept.dtype, DType::f32);
  EXPECT_EQ(linear_logp_kept_segments(call), 6);  // of three columns, the last of two
  EXPECT_EQ(call.kept.shape[1], 6 * 64);
}

}  // namespace
}  // namespace rlk
