// SPDX-License-Identifier: Apache-2.0
// The ten stages with a fake compiler and loader: order, counters, one build a key, fallbacks.
#include "jit/dispatcher.hpp"

#include "jit/build_key.hpp"
#include "tests/support/captured_log.hpp"
#include "tests/support/fake_toolchain.hpp"
#include "tests/support/temp_dir.hpp"
#include "tests/support/what.hpp"

#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <new>
#include <thread>

// Counts allocations of this thread, for the claim that a hit makes none. Inlined, they would make
// gcc warn of free() on the pointer of operator new.
static thread_local std::int64_t num_allocations = 0;
[[gnu::noinline]] void* operator new(std::size_t size) {
  ++num_allocations;
  if (void* p = std::malloc(size)) return p;
  throw std::bad_alloc();
}
[[gnu::noinline]] void operator delete(void* p) noexcept { std::free(p); }
[[gnu::noinline]] void operator delete(void* p, std::size_t) noexcept { std::free(p); }

namespace rlk::jit {
namespace {

using test::fake_call;

class DispatcherTest : public ::testing::Test {
 protected:
  void SetUp() override { RLK_NEEDS_CPU_TEMPLATES(); }
  std::unique_ptr<Dispatcher> make(Policy policy = Policy::sync) {
    Config config;
    config.settings.policy = policy;
    config.settings.log_level = LogLevel::off;
    config.settings.cache_dir = folder_ / "cache";
    config.settings.package_folder = folder_ / "package";
    return std::make_unique<Dispatcher>(config, Toolchain{compiler_, loader_});
  }
  // Runs a generic variant through a compiler once, into the built-in layer.
  void make_builtin_layer() {
    const auto spec = Specialization{&test::fake_op(), Pass::fwd, *host_cpu_target(), {}}.generic();
    const auto name = spec.text();
    cache::DiskStore store({(folder_ / "package/builtin"), {}, cache::Sharing::owner});
    std::filesystem::create_directories(folder_ / "package");
    const auto* bytes = reinterpret_cast<const std::byte*>(name.data());
    store.put({build_key(spec).bytes, "{}", {bytes, bytes + name.size()}}, "fake-0");
  }

  test::TempDir folder_;
  std::shared_ptr<test::FakeCompiler> compiler_ = std::make_shared<test::FakeCompiler>();
  std::shared_ptr<test::FakeLoader> loader_ = std::make_shared<test::FakeLoader>();
};

TEST_F(DispatcherTest, FirstCallCompilesLaterOnesHitMemory) {
  auto dispatcher = make();
  auto call = fake_call(7);
  dispatcher->run(call);
  EXPECT_TRUE(call.launched.starts_with("linear_logp.fwd[size=7]@x86-64-v")) << call.launched;
  dispatcher->run(call);
  dispatcher->run(call);
  const auto info = dispatcher->cache_info();
  EXPECT_EQ(info.compiles, 1);
  EXPECT_EQ(info.memory_hits, 2);
  EXPECT_EQ(info.disk_hits, 0);
  EXPECT_EQ(info.fallbacks, 0);
  EXPECT_EQ(call.num_launches, 3);
}

TEST_F(DispatcherTest, AnotherProcessLoadsFromDisk) {
  auto call = fake_call(7);
  make()->run(call);
  auto second = make();
  second->run(call);
  EXPECT_EQ(second->cache_info().disk_hits, 1);
  EXPECT_EQ(second->cache_info().compiles, 0);
  EXPECT_EQ(compiler_->num_compiles, 1);
}

TEST_F(DispatcherTest, CheckComesBeforeAnythingElse) {
  auto dispatcher = make();
  EXPECT_THROW(dispatcher->run(fake_call(-1)), InvalidArgument);
  EXPECT_EQ(compiler_->num_compiles, 0);
  EXPECT_FALSE(std::filesystem::exists(folder_ / "cache"));
}

TEST_F(DispatcherTest, HitAllocatesNothing) {
  auto dispatcher = make();
  auto call = fake_call(7);
  dispatcher->run(call);
  const auto before = num_allocations;
  for (int i = 0; i < 100; ++i) dispatcher->run(call);
  EXPECT_EQ(num_allocations, before);
}

TEST_F(DispatcherTest, NorDoesTheChoiceOfATile) {
  loader_->targets = {Target::sm_90a};
  Config config;
  config.settings.cache_dir = folder_ / "cache";
  config.settings.package_folder = folder_ / "package";
  Dispatcher dispatcher(config, {}, Toolchain{compiler_, loader_});
  auto call = test::fake_tiled_call(7);
  dispatcher.run(call);
  const auto before = num_allocations;
  for (int i = 0; i < 100; ++i) dispatcher.run(call);
  EXPECT_EQ(num_allocations, before);
  EXPECT_EQ(loader_->num_models, 1);
}

TEST_F(DispatcherTest, EightThreadsOneSpecCompileOnce) {
  compiler_->delay_ms = 50;
  auto dispatcher = make();
  std::vector<std::jthread> threads;
  for (int i = 0; i < 8; ++i) {
    threads.emplace_back([&] {
      auto call = fake_call(7);
      dispatcher->run(call);
      EXPECT_EQ(call.num_launches, 1);
    });
  }
  threads.clear();
  EXPECT_EQ(compiler_->num_compiles, 1);
}

TEST_F(DispatcherTest, DifferentSpecsCompileAtTheSameTime) {
  compiler_->delay_ms = 300;
  auto dispatcher = make();
  std::vector<std::jthread> threads;
  for (int i = 0; i < 8; ++i) threads.emplace_back([&, i] { dispatcher->run(fake_call(i)); });
  threads.clear();
  EXPECT_EQ(compiler_->num_compiles, 8);
  EXPECT_GT(compiler_->most_at_once, 1);
}

TEST_F(DispatcherTest, FailedCompileRunsTheGenericAndIsRemembered) {
  make_builtin_layer();
  compiler_->fails = true;
  auto dispatcher = make();
  auto call = fake_call(7);
  dispatcher->run(call);
  dispatcher->run(call);
  EXPECT_NE(call.launched.find("[ generic]"), std::string::npos) << call.launched;
  EXPECT_EQ(compiler_->num_compiles, 1);
  EXPECT_EQ(dispatcher->cache_info().fallbacks, 2);
  EXPECT_NE(dispatcher->explain(call).reason.find("refused by the fake"), std::string::npos);
}

TEST_F(DispatcherTest, FailedCompileWithoutGenericThrowsEachTime) {
  compiler_->fails = true;
  auto dispatcher = make();
  for (int i = 0; i < 3; ++i) EXPECT_THROW(dispatcher->run(fake_call(7)), Unsupported);
  EXPECT_TRUE(dispatcher->store()->list().empty());
}

TEST_F(DispatcherTest, MissingCompilerRunsTheGeneric) {
  make_builtin_layer();
  compiler_->missing = "librlk_llvm.so is not there";
  auto dispatcher = make();
  auto call = fake_call(7);
  dispatcher->run(call);
  EXPECT_EQ(dispatcher->cache_info().fallbacks, 1);
  EXPECT_EQ(compiler_->num_compiles, 0);
}

TEST_F(DispatcherTest, MissingCompilerTakesAnyEntryOfTheKey) {
  auto call = fake_call(7);
  make()->run(call);
  compiler_->missing = "librlk_llvm.so is not there";
  compiler_->id = "fake-2";
  auto dispatcher = make();
  dispatcher->run(call);
  EXPECT_EQ(dispatcher->cache_info().disk_hits, 1);
}

TEST_F(DispatcherTest, OtherCompilerIsAMiss) {
  auto call = fake_call(7);
  make()->run(call);
  compiler_->id = "fake-2";
  make()->run(call);
  EXPECT_EQ(compiler_->num_compiles, 2);
}

TEST_F(DispatcherTest, PolicyOffNeverCompilesAndSwitchesBack) {
  make_builtin_layer();
  auto dispatcher = make(Policy::off);
  auto call = fake_call(7);
  dispatcher->run(call);
  EXPECT_EQ(compiler_->num_compiles, 0);
  EXPECT_EQ(dispatcher->cache_info().fallbacks, 1);
  auto config = dispatcher->config();
  config.settings.policy = Policy::sync;
  dispatcher->configure(config);
  dispatcher->run(call);
  EXPECT_EQ(compiler_->num_compiles, 1);
  EXPECT_NE(call.launched.find("[size=7]"), std::string::npos);
}

TEST_F(DispatcherTest, PolicyOffWithNothingNamesWhatIsMissing) {
  auto dispatcher = make(Policy::off);
  try {
    dispatcher->run(fake_call(7));
    FAIL();
  } catch (const Unsupported& error) {
    EXPECT_NE(std::string(error.what()).find("RLK_JIT=off"), std::string::npos) << error.what();
  }
}

TEST_F(DispatcherTest, SpecializeOffRunsTheGenericAndIsNoFallback) {
  make_builtin_layer();
  auto dispatcher = make();
  auto config = dispatcher->config();
  config.settings.specialize = false;
  dispatcher->configure(config);
  auto call = fake_call(7);
  dispatcher->run(call);
  EXPECT_NE(call.launched.find("generic"), std::string::npos);
  EXPECT_EQ(dispatcher->cache_info().fallbacks, 0);
  EXPECT_EQ(compiler_->num_compiles, 0);
}

TEST_F(DispatcherTest, EntryThatDoesNotLoadIsBuiltAgain) {
  auto dispatcher = make();
  const auto spec = Specialization{&test::fake_op(), Pass::fwd, *host_cpu_target(), {7}};
  dispatcher->store()->put({build_key(spec).bytes, "{}", {std::byte{1}}}, compiler_->id);
  auto call = fake_call(7);
  dispatcher->run(call);
  EXPECT_EQ(compiler_->num_compiles, 1);
  make()->run(call);
  EXPECT_EQ(compiler_->num_compiles, 1) << "the sound entry was stored in its place";
}

TEST_F(DispatcherTest, GpuTensorIsUnsupported) {
  auto dispatcher = make();
  auto call = fake_call(7);
  call.device.kind = Device::Kind::cuda;
  EXPECT_THROW(dispatcher->run(call), Unsupported);
}

TEST_F(DispatcherTest, ExplainTouchesNothing) {
  auto dispatcher = make();
  auto call = fake_call(7);
  EXPECT_EQ(dispatcher->explain(call).source, "compile");
  EXPECT_EQ(compiler_->num_compiles, 0);
  EXPECT_FALSE(std::filesystem::exists(folder_ / "cache"));
  dispatcher->run(call);
  EXPECT_EQ(dispatcher->explain(call).source, "loaded");
  EXPECT_EQ(make()->explain(call).source, "cache");
}

TEST_F(DispatcherTest, WhatTheSystemRefusedIsAskedForAgain) {
  make_builtin_layer();
  auto dispatcher = make();
  compiler_->num_refusals = 2;
  const auto call = fake_call(7);
  for (const char* kernel : {" generic]", " generic]", "size=7]", "size=7]"}) {
    dispatcher->run(call);
    EXPECT_NE(call.launched.find(kernel), std::string::npos) << call.launched;
  }
  EXPECT_EQ(compiler_->num_compiles, 3);
  EXPECT_EQ(dispatcher->cache_info().fallbacks, 2);
}

TEST_F(DispatcherTest, WhereNothingMayBeLoadedTheErrorNamesTheCause) {
  make_builtin_layer();
  test::CapturedLog log;
  loader_->is_refused = true;
  for (const Policy policy : {Policy::sync, Policy::async, Policy::off}) {
    auto dispatcher = make(policy);
    set_log_level(LogLevel::warn);
    const auto call = fake_call(7);
    EXPECT_THROW(dispatcher->run(call), Refused);
    const std::string why = test::what<Refused>([&] { dispatcher->run(call); });
    EXPECT_NE(why.find("linear_logp: kernel: expected one for "), std::string::npos) << why;
    EXPECT_NE(why.find("got none: pages: refused by the fake"), std::string::npos) << why;
    loader_->is_refused = false;
    dispatcher->run(call);
    loader_->is_refused = true;
  }
  EXPECT_EQ(log.text(), "");
}

}  // namespace
}  // namespace rlk::jit
