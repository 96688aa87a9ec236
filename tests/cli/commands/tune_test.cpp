// SPDX-License-Identifier: Apache-2.0
// tune on a card that is a fake: what it chooses and stores, and where it refuses.
#include "cli/tune/machine.hpp"
#include "jit/tuning_file.hpp"
#include "runtime/cuda/cuda_loader.hpp"
#include "templates/det_gemm/cuda_args.h"
#include "templates/det_gemm/op.hpp"
#include "templates/linear_logp/cuda_args.h"
#include "templates/linear_logp/op.hpp"
#include "tests/cli/cli_fixture.hpp"
#include "tests/cli/fake_tool.hpp"
#include "tests/support/fake_cuda.hpp"
#include "tests/support/fake_toolchain.hpp"
#include "tests/support/what.hpp"

#include <algorithm>
#include <cstring>
#include <map>
#include <set>

namespace rlk::cli {
namespace {

using runtime::cuda::Driver;

constexpr int k_num_tiles = std::size(kLinearLogpSm90Tiles);

class TuneTest : public CliTest {
 protected:
  TuneTest() {
    fake_ = test::FakeCuda{};
    test::fake_cuda();
    fake_.contexts()->clear();
    fake_.argument_bytes = [](const std::string&) { return sizeof(LinearLogpCudaArgs); };
    // The tile that a kernel was compiled for stands in the shared memory that it asks for, in
    // whether it has a counter, and in its clusters.
    fake_.on_launch = [this](const test::FakeCuda::Launch& launch) {
      LinearLogpCudaArgs args;
      std::memcpy(&args, launch.first_argument.data(), sizeof(args));
      if (launch.kernel.ends_with("_main")) {
        for (const auto& tile : kLinearLogpSm90Tiles) {
          const bool is_it = tile.shared_bytes() == static_cast<int>(launch.shared_bytes) &&
                             tile.dynamic == (args.next_tile != nullptr) &&
                             tile.cluster == static_cast<int>(launch.cluster);
          if (is_it) ran_ = tile.name;
        }
        rows_ = args.num_rows;
      }
      if (launch.kernel.ends_with("_merge")) {
        for (long long row = 0; row < args.num_rows; ++row) {
          args.logp[row] = ran_ == wrong_ ? 1.0f : 0.0f;
          args.row_max[row] = args.row_log_sum[row] = 0.0f;
        }
      }
    };
    fake_.elapsed_ms = [this] {
      const auto found = ms_.find({ran_, rows_});
      return found == ms_.end() ? 10.0f : found->second;
    };
    compiler_->emit = [](const jit::CompileRequest& request) {
      std::string code;
      for (const auto& entry : request.entries) code += ".entry " + entry + "( ";
      return code + '\0';
    };
    settings_.package_folder = package_;
    settings_.cache_dir = folder_;
    asked_.vocab = 1000;
    asked_.hidden = 64;
  }

  Ran tune(bool json = false) {
    std::ostringstream out, err;
    const Context context{settings_, {}, json, false, false, out, err};
    Driver driver(RLK_FAKE_CUDA);
    const TuneMachine machine{
        has_driver_ ? &driver : nullptr,
        "no libcuda.so.1",
        {compiler_, runtime::cuda::make_cuda_loader([&]() -> Driver& { return driver; })}};
    int code = -1;
    try {
      code = tune_on(context, asked_, machine);
    } catch (const Error& error) {
      err << error.what();
    }
    return {code, out.str(), err.str()};
  }
  nlohmann::json tune_json() {
    const Ran ran = tune(true);
    EXPECT_EQ(ran.code, ok) << ran.err;
    return nlohmann::json::parse(ran.out);
  }
  std::vector<jit::TuningRecord> stored() const {
    return jit::read_tunings({.read_write = folder_});
  }

  test::FakeCuda& fake_ = test::fake_cuda();
  std::shared_ptr<test::FakeCompiler> compiler_ = std::make_shared<test::FakeCompiler>();
  Settings settings_;
  TuneCommand asked_;
  bool has_driver_ = true;
  std::string ran_, wrong_;
  std::int64_t rows_ = 0;
  std::map<std::pair<std::string, std::int64_t>, float> ms_;  // of a tile and rows; else 10
};

TEST_F(TuneTest, TheFastestOfEachClassIsStored) {
  ms_ = {{{"128-static", 1}, 5},
         {{"128-static", 64}, 5},
         {{"64-static", 128}, 5},
         {{"256-cooperative", 1024}, 5},
         {{"128-dynamic", 4096}, 9}};
  const auto told = tune_json();
  EXPECT_EQ(told["device"], "Fake H100 number 0");
  EXPECT_EQ(told["driver"], "12.8");
  EXPECT_EQ(told["target"], "sm_90a");
  EXPECT_EQ(told["file"], folder_ + "/tuning.json");
  ASSERT_EQ(told["chosen"].size(), 3u);
  EXPECT_EQ(told["chosen"][0]["tile"], "128-static");
  EXPECT_EQ(told["chosen"][0]["most_rows"], 64);
  EXPECT_EQ(told["chosen"][0]["ratio"], 1.0);
  EXPECT_EQ(told["chosen"][1]["tile"], "64-static");
  // 1024 rows: half the time of the others; 4096 rows: 10 % more than the best.
  EXPECT_EQ(told["chosen"][2]["tile"], "256-cooperative");
  EXPECT_TRUE(told["chosen"][2]["most_rows"].is_null());
  EXPECT_NEAR(told["chosen"][2]["ratio"].get<double>(), std::sqrt(10.0 / 9), 1e-6);
  ASSERT_EQ(told["measured"].size(), 6u);
  for (const auto& tile : told["measured"][0]["tiles"]) {
    EXPECT_EQ(tile["best"], tile["tile"] == "128-static");
  }
  const auto records = stored();
  ASSERT_EQ(records.size(), 1u);
  EXPECT_EQ(records[0].tiles,
            (std::array<std::string, 3>{"128-static", "64-static", "256-cooperative"}));
  EXPECT_EQ(records[0].device, (runtime::DeviceModel{"Fake H100 number 0", "12.8"}));
}

TEST_F(TuneTest, WhatWasMeasuredIsToldWhereItCannotBeStored) {
  std::filesystem::create_directories(folder_ + "/tuning.json/a folder");
  const Ran ran = tune();
  EXPECT_NE(ran.code, ok);
  EXPECT_NE(ran.err.find("tuning.json: not written: "), std::string::npos) << ran.err;
  EXPECT_NE(ran.out.find("up to 64 rows: "), std::string::npos) << ran.out;
  EXPECT_EQ(ran.out.find("stored in"), std::string::npos) << ran.out;
}

TEST_F(TuneTest, ADispatcherTakesWhatWasStored) {
  ms_ = {{{"64-static", 1}, 5}, {{"64-static", 64}, 5}};
  EXPECT_EQ(tune().code, ok);
  jit::Config config{settings_};
  Driver driver(RLK_FAKE_CUDA);
  jit::Dispatcher dispatcher(
      config, {},
      {compiler_, runtime::cuda::make_cuda_loader([&]() -> Driver& { return driver; })});
  const auto tuned =
      dispatcher.tuning(templates::linear_logp_op, jit::Pass::fwd, {Device::Kind::cuda, 0});
  EXPECT_EQ(templates::linear_logp_op.tile_names[static_cast<std::size_t>(tuned.tiles[0])],
            "64-static");
  // Another card of another name.
  EXPECT_EQ(dispatcher.tuning(templates::linear_logp_op, jit::Pass::fwd, {Device::Kind::cuda, 1}),
            jit::Tuning());
}

TEST_F(TuneTest, EveryTileIsCompiledOnceAndKept) {
  const auto told = tune();
  EXPECT_EQ(told.code, ok) << told.err;
  EXPECT_EQ(compiler_->num_compiles, k_num_tiles);
  EXPECT_NE(told.out.find("compiled linear_logp.fwd[x=bf16 V=1000 D=64 tile=64-static]@sm_90a\n"),
            std::string::npos)
      << told.out;
  EXPECT_NE(told.out.find("stored in " + folder_ + "/tuning.json\n"), std::string::npos);
  EXPECT_NE(told.out.find("up to 64 rows: "), std::string::npos) << told.out;
  tune();
  EXPECT_EQ(compiler_->num_compiles, k_num_tiles);
  EXPECT_EQ(run_json({"list"}).size(), static_cast<std::size_t>(k_num_tiles));
  EXPECT_EQ(log_.text(), "");
}

TEST_F(TuneTest, RoundsOfTilesTakeTurns) {
  std::vector<std::string> order;
  fake_.elapsed_ms = [&] {
    if (rows_ == 4096) order.push_back(ran_);
    return 10.0f;
  };
  EXPECT_EQ(tune().code, ok);
  // After one of each, rounds that each begin with another.
  ASSERT_GT(order.size(), 3u * k_num_tiles);
  for (auto begin = order.begin(); begin < order.begin() + 3 * k_num_tiles; begin += k_num_tiles) {
    EXPECT_EQ(std::set(begin, begin + k_num_tiles).size(), std::size_t{k_num_tiles});
  }
  EXPECT_NE(order[k_num_tiles], order[2 * k_num_tiles]);
}

TEST_F(TuneTest, ShapesAndTypesAreAllMeasured) {
  asked_.models = {"V=1000,D=64", "V=500,D=72"};
  asked_.vocab = asked_.hidden = std::nullopt;
  asked_.dtypes = {"bf16,fp16"};
  std::set<std::string> cases;
  const auto told = tune_json();
  for (const auto& one : told["measured"]) {
    cases.insert(one["dtype"].get<std::string>() + " " + one["vocab"].dump() + " " +
                 one["hidden"].dump() + " " + one["rows"].dump());
  }
  EXPECT_EQ(cases.size(), 24u);
  EXPECT_TRUE(cases.contains("fp16 500 72 4096"));
}

// Zeros take less power, so a card runs faster on them.
TEST_F(TuneTest, OperandsAreRandom) {
  std::set<std::uint16_t> seen;
  fake_.on_launch = [&, before = fake_.on_launch](const test::FakeCuda::Launch& launch) {
    before(launch);
    if (!launch.kernel.ends_with("_main")) return;
    LinearLogpCudaArgs args;
    std::memcpy(&args, launch.first_argument.data(), sizeof(args));
    for (const auto* matrix : {args.hidden, args.weight}) {
      const auto* bits = static_cast<const std::uint16_t*>(matrix);
      for (int i = 0; i < 64; ++i) {
        seen.insert(bits[i]);
        EXPECT_LT(bits[i] & 0x7fff, 0x4080) << "below 4";
        EXPECT_GT(bits[i] & 0x7fff, 0x3a00) << "above 0.0005";
      }
    }
  };
  EXPECT_EQ(tune().code, ok);
  EXPECT_GT(seen.size(), 64u);
}

TEST_F(TuneTest, OtherBitsAreAnErrorAndNothingIsStored) {
  wrong_ = "128-static";
  const Ran ran = tune();
  EXPECT_EQ(ran.code, -1);
  EXPECT_EQ(ran.err,
            "V=1000 D=64 bf16, 1 rows: tiles 128-dynamic and 128-static do not give the same bits; "
            "nothing is stored");
  EXPECT_TRUE(stored().empty());
}

TEST_F(TuneTest, ATileThatDoesNotRunIsAnError) {
  compiler_->emit = [emit = compiler_->emit](const jit::CompileRequest& request) {
    if (request.name.find("64-static") != std::string::npos) throw CompileError("spills");
    return emit(request);
  };
  const Ran ran = tune();
  EXPECT_EQ(ran.code, -1);
  EXPECT_NE(ran.err.find("V=1000 D=64 bf16, 1 rows: tile 64-static does not run: spills"),
            std::string::npos)
      << ran.err;
  EXPECT_TRUE(stored().empty());
}

TEST_F(TuneTest, WithoutACardNothingIsTuned) {
  has_driver_ = false;
  const Ran ran = tune();
  EXPECT_EQ(ran.code, failed);
  EXPECT_EQ(ran.err, "rlk-jit: tune: expected a CUDA device, got none: no libcuda.so.1\n");
  has_driver_ = true;
  asked_.device = 2;
  EXPECT_NE(tune().err.find("device: expected one of the 2 CUDA devices, got cuda:2"),
            std::string::npos);
  EXPECT_FALSE(std::filesystem::exists(folder_));
}

TEST_F(TuneTest, WithoutACompilerNothingIsTuned) {
  settings_.policy = Policy::off;
  Ran ran = tune();
  EXPECT_EQ(ran.code, failed);
  EXPECT_EQ(ran.err,
            "rlk-jit: tune: expected RLK_JIT=sync, got off: every tile must be compiled\n");
  settings_.policy = Policy::async;
  compiler_->missing = "no NVRTC found";
  ran = tune();
  EXPECT_EQ(ran.code, failed);
  EXPECT_EQ(ran.err, "rlk-jit: tune: no tile can be compiled: no NVRTC found\n");
  // Under async every tile is waited for.
  compiler_->missing.clear();
  EXPECT_EQ(tune().code, ok);
}

TEST_F(TuneTest, OtherCardsHaveNothingToTune) {
  fake_.capabilities = {{8, 0}};
  Ran ran = tune();
  EXPECT_EQ(ran.code, failed);
  EXPECT_EQ(ran.err,
            "rlk-jit: cuda:0 (Fake H100 number 0): nothing to tune: its kernels, of sm_80, have "
            "one tile\n");
  fake_.capabilities = {{9, 0}};
  settings_.arch.cuda = Target::compute_80;
  EXPECT_NE(tune().err.find("of compute_80, have one tile"), std::string::npos);
  EXPECT_TRUE(stored().empty());
}

TEST_F(TuneTest, WrongWordsAreWrongUsage) {
  const auto expect_wrong = [&](const std::string& why) {
    const Ran ran = tune();
    EXPECT_EQ(ran.code, wrong_usage);
    EXPECT_EQ(ran.err, "rlk-jit: " + why + "\n");
  };
  asked_.hidden = std::nullopt;
  expect_wrong("--vocab, --hidden: expected both or none, got one");
  asked_.hidden = 8;
  asked_.models = {"V=10,D=8"};
  expect_wrong("--hidden: expected without --model, got both");
  asked_.models.clear();
  asked_.dtypes = {"bf16,fp32"};
  expect_wrong("--dtype: expected bf16, fp16: fp32 is not tuned, got fp32");
  EXPECT_NE(run({"tune", "--dtype", "int8"}).err.find("--dtype: expected bf16"), std::string::npos);
  EXPECT_EQ(run({"tune", "--vocab", "0", "--hidden", "8"}).code, wrong_usage);
  asked_.dtypes = {"bf16"};
  asked_.op = "logp";
  expect_wrong("--op: expected one of linear_logp, det_gemm, got logp");
  asked_.op = "det_gemm";
  expect_wrong("--vocab, --hidden: expected with --op linear_logp, got det_gemm");
  asked_.vocab = asked_.hidden = std::nullopt;
  asked_.models = {"V=10,D=8"};
  expect_wrong("--model: expected linear layers, got V=10,D=8");
}

class TuneLayersTest : public TuneTest {
 protected:
  TuneLayersTest() {
    fake_.tensor_maps.clear();
    fake_.argument_bytes = [](const std::string&) { return sizeof(DetGemmCudaArgs); };
    // The tile that a kernel was compiled for stands in the box of b, but for a cluster's.
    fake_.on_launch = [this](const test::FakeCuda::Launch& launch) {
      DetGemmCudaArgs args;
      std::memcpy(&args, launch.first_argument.data(), sizeof(args));
      for (const auto& tile : kDetGemmTiles) {
        const bool is_it = (tile.loops & kDetGemmSm90) != 0 &&
                           tile.cols == static_cast<int>(fake_.tensor_maps.back().box_rows);
        if (is_it) ran_ = tile.name;
      }
      rows_ = args.num_rows;
      weights_.insert(args.b.data);
      std::memset(args.out, ran_ == wrong_ ? 1 : 0,
                  static_cast<std::size_t>(args.num_rows * args.num_cols * 2));
    };
    asked_.op = "det_gemm";
    asked_.vocab = asked_.hidden = std::nullopt;
    asked_.models = {"K=64,N=512"};
  }

  std::set<const void*> weights_;
};

TEST_F(TuneLayersTest, TheFastestOfEachClassIsStored) {
  ms_ = {{{"64x64", 1}, 5},       {{"64x64", 64}, 5},     {{"64x128", 128}, 9.9F},
         {{"64x128", 256}, 9.9F}, {{"128x256", 1024}, 9}, {{"128x256", 4096}, 9}};
  const auto told = tune_json();
  const auto& tiles = told["measured"][0]["tiles"];
  const auto num_tiles = std::ranges::count_if(
      kDetGemmTiles, [](const auto& tile) { return (tile.loops & kDetGemmSm90) != 0; });
  ASSERT_EQ(std::ssize(tiles), 1 + num_tiles);
  EXPECT_EQ(tiles[0]["tile"], "own");
  EXPECT_EQ(tiles[1]["tile"], "128x192");
  EXPECT_EQ(tiles[5]["tile"], "64x64");
  EXPECT_EQ(told["measured"][0]["op"], "det_gemm");
  EXPECT_EQ(told["measured"][0]["inputs"], 64);
  EXPECT_EQ(told["measured"][0]["outputs"], 512);
  const auto records = stored();
  ASSERT_EQ(records.size(), 1u);
  EXPECT_EQ(records[0].op, "det_gemm");
  // A percent is not enough to leave the op's own choice, which heeds the size.
  EXPECT_EQ(records[0].tiles, (std::array<std::string, 3>{"64x64", "own", "128x256"}));
  const jit::Tuning tuning = jit::tuning_of(records[0], templates::det_gemm_op);
  EXPECT_EQ(tuning.tiles, (std::array<std::int8_t, 3>{4, jit::Tuning::k_own, 1}));
  EXPECT_EQ(log_.text(), "");
}

// Else a weight would be in the card's cache, as it is not in a model.
TEST_F(TuneLayersTest, CallsTakeWeightsInTurn) {
  fake_.elapsed_ms = [] { return 1.0F; };  // bursts of five
  EXPECT_EQ(tune().code, ok);
  EXPECT_EQ(weights_.size(), 5u);
}

TEST_F(TuneLayersTest, OtherBitsAreAnErrorAndNothingIsStored) {
  wrong_ = "64x32";
  EXPECT_NE(tune().err.find("K=64 N=512 bf16, 1 rows: tiles own and "), std::string::npos);
  EXPECT_TRUE(stored().empty());
}

TEST_F(TuneLayersTest, LayersOfAModelAreMeasuredOnce) {
  asked_.models = {"K=64,N=512", "K=64,N=512", "K=512,N=64"};
  std::set<std::string> cases;
  const auto told = tune_json();
  for (const auto& one : told["measured"]) {
    cases.insert(one["inputs"].dump() + " " + one["outputs"].dump() + " " + one["rows"].dump());
  }
  EXPECT_EQ(told["measured"].size(), 12u);
  EXPECT_EQ(cases.size(), 12u);
  EXPECT_NE(tune().out.find("inputs"), std::string::npos);
}

}  // namespace
}  // namespace rlk::cli
