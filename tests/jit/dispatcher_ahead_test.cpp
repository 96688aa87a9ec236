// SPDX-License-Identifier: Apache-2.0
// A forward that will be differentiated has its backward's kernel compiled meanwhile.
#include "runtime/cpu_count.hpp"
#include "tests/jit/dispatcher_cuda_fixture.hpp"
#include "tests/support/child_processes.hpp"

namespace rlk::jit {
namespace {

using namespace std::chrono_literals;

constexpr auto k_backward = "linear_logp.bwd[size=7]@sm_90a";

class DispatcherAheadTest : public DispatcherCudaTest {
 protected:
  void SetUp() override {
    if (runtime::usable_cpus() < 2) GTEST_SKIP() << "nothing is compiled ahead on one core";
  }

  test::FakeCall call(Pass pass, std::int64_t size = 7) const {
    auto made = test::fake_cuda_call(size);
    made.op = &test::fake_op_with_gradients();
    made.pass = pass;
    made.is_differentiated = pass == Pass::fwd;
    return made;
  }
  std::string run(Dispatcher& dispatcher, Pass pass, std::int64_t size = 7) {
    const auto made = call(pass, size);
    dispatcher.run(made);
    return made.launched;
  }
  int forward_alone(Dispatcher& dispatcher) {
    run(dispatcher, Pass::fwd);
    EXPECT_TRUE(dispatcher.wait_for(10s));
    return compiler_->num_compiles;
  }
};

TEST_F(DispatcherAheadTest, TheBackwardIsThereBeforeItsCall) {
  auto dispatcher = make();
  EXPECT_EQ(forward_alone(*dispatcher), 2);
  EXPECT_EQ(dispatcher->cache_info().compiles, 2);
  const Explanation found = dispatcher->explain(call(Pass::bwd));
  EXPECT_EQ(found.source, "loaded");
  EXPECT_EQ(found.reason, "it was compiled beside the forward");
  EXPECT_EQ(run(*dispatcher, Pass::bwd), k_backward);
  EXPECT_EQ(compiler_->num_compiles, 2);
  EXPECT_EQ(dispatcher->cache_info().disk_hits, 0);
  // Stored as well: another process compiles nothing.
  auto other = make();
  run(*other, Pass::fwd);
  EXPECT_EQ(run(*other, Pass::bwd), k_backward);
  EXPECT_EQ(other->cache_info().disk_hits, 2);
  EXPECT_EQ(compiler_->num_compiles, 2);
}

TEST_F(DispatcherAheadTest, BothAreCompiledAtOnceAndTheBackwardWaitsForTheRest) {
  auto dispatcher = make();
  compiler_->delay_ms = 200;
  run(*dispatcher, Pass::fwd);
  EXPECT_EQ(run(*dispatcher, Pass::bwd), k_backward);
  EXPECT_EQ(compiler_->num_compiles, 2);
  EXPECT_EQ(compiler_->most_at_once, 2);
}

TEST_F(DispatcherAheadTest, WhatStandsInAQueueIsCompiledByItsOwnCall) {
  auto dispatcher = make();
  compiler_->delay_ms = 100;
  {
    std::vector<std::jthread> threads;
    for (int size = 1; size <= 4; ++size) {
      threads.emplace_back([&, size] { run(*dispatcher, Pass::fwd, size); });
    }
  }
  for (int size = 4; size >= 1; --size) EXPECT_NE(run(*dispatcher, Pass::bwd, size), "");
  ASSERT_TRUE(dispatcher->wait_for(10s));
  EXPECT_EQ(compiler_->num_compiles, 8);
}

TEST_F(DispatcherAheadTest, AForwardThatIsLoadedBeginsItToo) {
  auto dispatcher = make();
  auto plain = call(Pass::fwd);
  plain.is_differentiated = false;
  dispatcher->run(plain);
  ASSERT_TRUE(dispatcher->wait_for(10s));
  EXPECT_EQ(compiler_->num_compiles, 1);
  EXPECT_EQ(forward_alone(*dispatcher), 2);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(forward_alone(*dispatcher), 2);
}

TEST_F(DispatcherAheadTest, NothingWhereTheBackwardsOwnCallWouldCompileNothing) {
  make_builtin_layer(Target::sm_90a);
  EXPECT_EQ(forward_alone(*make(config(Policy::off))), 0);
  Config generic = config();
  generic.settings.specialize = false;
  EXPECT_EQ(forward_alone(*make(generic)), 0);
  compiler_->missing = "no compiler";
  EXPECT_EQ(forward_alone(*make()), 0);
}

TEST_F(DispatcherAheadTest, AFailureIsTheBackwardsOwn) {
  auto dispatcher = make();
  compiler_->emit = [](const CompileRequest& request) {
    if (request.name == k_backward) throw CompileError("{}: refused by the fake", request.name);
    return request.name;
  };
  EXPECT_EQ(forward_alone(*dispatcher), 2);
  EXPECT_EQ(log_.text(), "");
  EXPECT_EQ(dispatcher->explain(call(Pass::bwd)).source, "compile");
  // As there is no generic one.
  const auto backward = call(Pass::bwd);
  EXPECT_THROW(dispatcher->run(backward), Unsupported);
  EXPECT_EQ(compiler_->num_compiles, 3);
}

TEST_F(DispatcherAheadTest, WhatDidNotLoadIsTriedAgain) {
  auto dispatcher = make();
  run(*dispatcher, Pass::fwd, 8);
  ASSERT_TRUE(dispatcher->wait_for(10s));
  loader_->refused = "bwd[size=7]";
  EXPECT_EQ(forward_alone(*dispatcher), 4);
  loader_->refused = "";
  EXPECT_EQ(run(*dispatcher, Pass::bwd), k_backward);
  EXPECT_EQ(log_.text(), "");
}

TEST_F(DispatcherAheadTest, UnderAsyncItTakesOverAsAnyOther) {
  make_builtin_layer(Target::sm_90a);
  auto dispatcher = make(config(Policy::async));
  EXPECT_EQ(forward_alone(*dispatcher), 2);
  EXPECT_EQ(run(*dispatcher, Pass::bwd), k_backward);
  EXPECT_EQ(dispatcher->cache_info().fallbacks, 1);  // the forward's
}

TEST_F(DispatcherAheadTest, ConfigureMayComeInBetween) {
  auto dispatcher = make();
  compiler_->delay_ms = 50;
  run(*dispatcher, Pass::fwd);
  Config other = config();
  other.settings.cache_dir = folder_ / "other";
  dispatcher->configure(other);
  EXPECT_EQ(run(*dispatcher, Pass::bwd), k_backward);
  run(*dispatcher, Pass::fwd, 8);
  dispatcher->configure(config(Policy::off));
  EXPECT_TRUE(dispatcher->wait_for(10s));
  EXPECT_LE(compiler_->num_compiles, 4);
}

TEST_F(DispatcherAheadTest, NotWithinACapture) {
  auto dispatcher = make();
  auto plain = call(Pass::fwd);
  plain.is_differentiated = false;
  dispatcher->run(plain);
  loader_->captures = true;
  EXPECT_EQ(forward_alone(*dispatcher), 1);
  loader_->captures = false;
  EXPECT_EQ(forward_alone(*dispatcher), 2);
}

TEST_F(DispatcherAheadTest, DestructionWaitsForWhatRuns) {
  auto dispatcher = make();
  compiler_->delay_ms = 50;
  run(*dispatcher, Pass::fwd);
  dispatcher.reset();
  EXPECT_EQ(compiler_->num_at_once, 0);
}

}  // namespace
}  // namespace rlk::jit
