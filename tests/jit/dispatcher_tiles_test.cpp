// SPDX-License-Identifier: Apache-2.0
// Tiles: which one a call takes, and that another one runs where that one cannot be had.
#include "tests/jit/dispatcher_cuda_fixture.hpp"

#include <thread>
#include <vector>

namespace rlk::jit {
namespace {

using namespace std::chrono_literals;
using test::fake_tiled_call;

class DispatcherTilesTest : public DispatcherCudaTest {
 protected:
  static std::string name(const std::string& tile, std::int64_t size = 7) {
    return "linear_logp.fwd[size=" + std::to_string(size) + (tile == "a" ? "" : " tile=" + tile) +
           "]@sm_90a";
  }
  static std::string run(Dispatcher& dispatcher, std::int64_t size = 7, std::int64_t rows = 1000,
                         int device = 0) {
    const auto call = fake_tiled_call(size, rows, device);
    dispatcher.run(call);
    return call.launched;
  }
  Config with_tile(const std::string& tile, Policy policy = Policy::sync) const {
    Config forced = config(policy);
    forced.settings.tile = tile;
    return forced;
  }
  // Compiled by another process.
  void put(const std::string& tile) { EXPECT_EQ(run(*make(with_tile(tile))), name(tile)); }
  void choose(const std::array<std::string, 3>& tiles, const runtime::DeviceModel& device) const {
    store_tuning({.read_write = folder_ / "cache"},
                 {"linear_logp", Pass::fwd, Target::sm_90a, device, tiles});
  }
  void make_generic() {
    const auto spec =
        Specialization{&test::fake_tiled_op(), Pass::fwd, Target::sm_90a, {}}.generic();
    const std::string code = spec.text();
    std::filesystem::create_directories(folder_ / "package");
    const auto* bytes = reinterpret_cast<const std::byte*>(code.data());
    cache::DiskStore({.read_write = folder_ / "package/builtin"})
        .put({build_key(spec).bytes, "{}", {bytes, bytes + code.size()}}, "fake-0");
  }
};

TEST_F(DispatcherTilesTest, WithoutAChoiceTheOpChooses) {
  EXPECT_EQ(run(*make()), name("a"));
  EXPECT_EQ(log_.text(), "");
}

TEST_F(DispatcherTilesTest, AChoiceHoldsForItsDeviceAndItsRows) {
  choose({"b", "c", "a"}, {"Fake H100", "12.8"});
  choose({"c", "c", "c"}, {"Fake H200", "12.8"});
  choose({"b", "b", "b"}, {"Fake H100", "12.9"});
  loader_->models = {{"Fake H100", "12.8"}, {"Fake H200", "12.8"}, {"Fake A100", "12.8"}};
  auto dispatcher = make();
  EXPECT_EQ(run(*dispatcher, 7, 64), name("b"));
  EXPECT_EQ(run(*dispatcher, 7, 65), name("c"));
  EXPECT_EQ(run(*dispatcher, 7, 256), name("c"));
  EXPECT_EQ(run(*dispatcher, 7, 257), name("a"));
  EXPECT_EQ(run(*dispatcher, 7, 1, 1), name("c"));
  EXPECT_EQ(run(*dispatcher, 7, 1, 2), "linear_logp.fwd[size=7]@sm_80");
  EXPECT_EQ(dispatcher->tuning(test::fake_tiled_op(), Pass::bwd, {Device::Kind::cuda, 0}),
            Tuning());
  EXPECT_EQ(log_.text(), "");
}

TEST_F(DispatcherTilesTest, AReadOnlyLayerChoosesAfterTheReadWriteOne) {
  choose({"b", "b", "b"}, {"Fake H100", "12.8"});
  Config layered = config();
  layered.settings.cache_dir = folder_ / "other";
  layered.settings.cache_path = {folder_ / "cache"};
  EXPECT_EQ(run(*make(layered)), name("b"));
  store_tuning({.read_write = folder_ / "other"},
               {"linear_logp", Pass::fwd, Target::sm_90a, {"Fake H100", "12.8"}, {"c", "c", "c"}});
  EXPECT_EQ(run(*make(layered)), name("c"));
}

TEST_F(DispatcherTilesTest, AForcedTileIsForEveryCall) {
  choose({"b", "b", "b"}, {"Fake H100", "12.8"});
  auto dispatcher = make(with_tile("c"));
  EXPECT_EQ(run(*dispatcher), name("c"));
  dispatcher->configure(with_tile("a"));
  EXPECT_EQ(run(*dispatcher), name("a"));
  dispatcher->configure(config());
  EXPECT_EQ(run(*dispatcher), name("b"));
  dispatcher->configure(with_tile("of another op"));
  EXPECT_EQ(run(*dispatcher), name("a"));
  dispatcher->configure(with_tile("c"));
  EXPECT_EQ(run(*dispatcher), name("c"));
  EXPECT_EQ(dispatcher->cache_info().compiles, 3);
}

TEST_F(DispatcherTilesTest, ATileThatThisBuildDoesNotHaveIsSaidOnce) {
  choose({"b", "gone", "c"}, {"Fake H100", "12.8"});
  auto dispatcher = make();
  EXPECT_EQ(run(*dispatcher, 7, 64), name("b"));
  EXPECT_EQ(run(*dispatcher, 7, 65), name("a"));
  EXPECT_EQ(run(*dispatcher, 7, 257), name("c"));
  EXPECT_EQ(log_.num_lines(), 1) << log_.text();
  EXPECT_TRUE(log_.contains("tuning.json: tile: expected a, b, c, got \"gone\"")) << log_.text();
}

TEST_F(DispatcherTilesTest, ADamagedFileIsSaidOnceAndTheOpChooses) {
  choose({"b", "b", "b"}, {"Fake H100", "12.8"});
  test::write_file(folder_ / "cache/tuning.json", "{\"format\": 1, \"choi");
  auto dispatcher = make();
  EXPECT_EQ(run(*dispatcher), name("a"));
  EXPECT_EQ(run(*dispatcher, 8), name("a", 8));
  dispatcher->configure(dispatcher->config());
  EXPECT_EQ(run(*dispatcher), name("a"));
  EXPECT_EQ(log_.num_lines(), 1) << log_.text();
  EXPECT_TRUE(log_.contains("tuning.json: not used")) << log_.text();
}

TEST_F(DispatcherTilesTest, WithNothingCompiledAnotherTileRunsBeforeTheGenericKernel) {
  make_generic();
  EXPECT_EQ(run(*make(config(Policy::off))), k_generic);
  put("c");
  log_.clear();
  for (const bool has_compiler : {true, false}) {
    compiler_->missing = has_compiler ? "" : "no NVRTC found";
    auto dispatcher = make(config(has_compiler ? Policy::off : Policy::sync));
    const auto explained = dispatcher->explain(fake_tiled_call(7));
    EXPECT_EQ(explained.kernel, name("c"));
    EXPECT_EQ(explained.variant, "specialized");
    EXPECT_EQ(explained.source, "cache");
    EXPECT_NE(explained.reason.find("another tile gives the same bits"), std::string::npos);
    for (int i = 0; i < 3; ++i) EXPECT_EQ(run(*dispatcher), name("c"));
    const CacheInfo info = dispatcher->cache_info();
    EXPECT_EQ(info.alternatives, 3);
    EXPECT_EQ(info.fallbacks, 0);
    EXPECT_EQ(info.compiles, 0);
    EXPECT_EQ(info.disk_hits, 1);
    EXPECT_EQ(info.loaded, 1);
    const auto now = dispatcher->explain(fake_tiled_call(7));
    EXPECT_EQ(now.kernel, name("c"));
    EXPECT_EQ(now.source, "loaded");
    // A call that means this tile finds it loaded.
    dispatcher->configure(with_tile("c", dispatcher->config().settings.policy));
    EXPECT_EQ(run(*dispatcher), name("c"));
    EXPECT_EQ(dispatcher->cache_info().disk_hits, 1);
    EXPECT_EQ(dispatcher->cache_info().alternatives, 3);
  }
  EXPECT_EQ(log_.text(), "") << "it costs little";
}

TEST_F(DispatcherTilesTest, ALoadedOneComesBeforeThoseOfTheLayers) {
  put("b");
  put("c");
  auto dispatcher = make(with_tile("c", Policy::off));
  EXPECT_EQ(run(*dispatcher), name("c"));
  dispatcher->configure(with_tile("a", Policy::off));
  EXPECT_EQ(dispatcher->explain(fake_tiled_call(7)).source, "loaded");
  const int num_loads = loader_->num_loads;
  EXPECT_EQ(run(*dispatcher), name("c"));
  EXPECT_EQ(loader_->num_loads, num_loads);
}

TEST_F(DispatcherTilesTest, ATileThatDoesNotCompileIsReplacedAndSaid) {
  put("b");
  compiler_->fails = true;
  auto dispatcher = make();
  EXPECT_EQ(run(*dispatcher), name("b"));
  EXPECT_EQ(run(*dispatcher), name("b"));
  EXPECT_EQ(compiler_->num_compiles, 2);
  EXPECT_EQ(dispatcher->cache_info().alternatives, 2);
  EXPECT_EQ(log_.num_lines(), 1) << log_.text();
  EXPECT_TRUE(log_.contains(name("a") + ": " + name("b") + " runs instead")) << log_.text();
}

TEST_F(DispatcherTilesTest, InTheBackgroundItIsMadeWhileAnotherTileRuns) {
  put("b");
  make_generic();
  compiler_->delay_ms = 100;
  auto dispatcher = make(config(Policy::async));
  EXPECT_EQ(run(*dispatcher), name("b"));
  EXPECT_EQ(run(*dispatcher), name("b"));
  EXPECT_TRUE(dispatcher->wait_for(10s));
  EXPECT_EQ(run(*dispatcher), name("a"));
  EXPECT_EQ(dispatcher->cache_info().alternatives, 2);
  EXPECT_EQ(dispatcher->cache_info().fallbacks, 0);
  EXPECT_EQ(log_.text(), "");
}

TEST_F(DispatcherTilesTest, InTheBackgroundAFailureIsSaid) {
  put("b");
  compiler_->fails = true;
  auto dispatcher = make(config(Policy::async));
  run(*dispatcher);
  ASSERT_TRUE(dispatcher->wait_for(10s));
  EXPECT_EQ(run(*dispatcher), name("b"));
  EXPECT_EQ(run(*dispatcher), name("b"));
  EXPECT_EQ(log_.num_lines(), 1) << log_.text();
  EXPECT_TRUE(log_.contains(name("a") + ": " + name("b") + " runs instead")) << log_.text();
  EXPECT_NE(dispatcher->explain(fake_tiled_call(7)).reason.find("refused by the fake"),
            std::string::npos);
}

// Each finds the other's tile in the layers while the other looks for its own.
TEST_F(DispatcherTilesTest, TwoThatReplaceEachOtherDoNotWait) {
  put("c");
  choose({"a", "b", "a"}, {"Fake H100", "12.8"});
  auto dispatcher = make(config(Policy::off));
  std::vector<std::jthread> threads;
  for (int i = 0; i < 8; ++i) {
    threads.emplace_back(
        [&, i] { EXPECT_EQ(run(*dispatcher, 7, i % 2 == 0 ? 1 : 100), name("c")); });
  }
  threads.clear();
  EXPECT_EQ(dispatcher->cache_info().alternatives, 8);
}

// A graph may launch it at any time.
TEST_F(DispatcherTilesTest, AnotherTileThatAGraphHasCapturedStays) {
  for (const std::int64_t size : {1, 2, 3}) run(*make(with_tile("b")), size);
  auto dispatcher = make(config(Policy::off));
  run(*dispatcher, 1);
  loader_->captures = true;
  run(*dispatcher, 1);
  loader_->captures = false;
  for (const std::int64_t size : {2, 3}) run(*dispatcher, size);
  dispatcher->configure(config(Policy::off));
  EXPECT_EQ(run(*dispatcher, 1), name("b", 1));
  EXPECT_EQ(loader_->num_loaded, 3);
  EXPECT_EQ(dispatcher->cache_info().loaded, 3);
}

}  // namespace
}  // namespace rlk::jit
