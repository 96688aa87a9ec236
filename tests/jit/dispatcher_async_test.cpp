// SPDX-License-Identifier: Apache-2.0
// Policy async: the generic kernel at once, the specialized one from a later call on.
#include "tests/jit/dispatcher_cuda_fixture.hpp"

#include <sys/wait.h>
#include <unistd.h>

namespace rlk::jit {
namespace {

using namespace std::chrono_literals;
using test::fake_call;
using test::fake_cuda_call;

class DispatcherAsyncTest : public DispatcherCudaTest {
 protected:
  std::unique_ptr<Dispatcher> make_async() {
    make_builtin_layer(Target::sm_90a);
    return make(config(Policy::async));
  }
  std::string run(Dispatcher& dispatcher, std::int64_t size = 7) {
    const auto call = fake_cuda_call(size);
    dispatcher.run(call);
    return call.launched;
  }
};

TEST_F(DispatcherAsyncTest, TheGenericKernelRunsUntilTheSpecializedOneIsThere) {
  auto dispatcher = make_async();
  compiler_->delay_ms = 100;
  EXPECT_EQ(run(*dispatcher), k_generic);
  EXPECT_EQ(run(*dispatcher), k_generic);
  EXPECT_FALSE(dispatcher->wait_for(0ms));
  EXPECT_TRUE(dispatcher->wait_for(10s));
  EXPECT_EQ(run(*dispatcher), k_specialized);
  EXPECT_EQ(run(*dispatcher), k_specialized);
  EXPECT_EQ(compiler_->num_compiles, 1);
  EXPECT_EQ(dispatcher->cache_info().fallbacks, 2);
  EXPECT_EQ(log_.text(), "");
  // Stored as well: another process finds it.
  EXPECT_EQ(run(*make(config(Policy::off))), k_specialized);
}

TEST_F(DispatcherAsyncTest, WhatIsInTheCacheRunsAtOnce) {
  EXPECT_EQ(run(*make()), k_specialized);
  EXPECT_EQ(run(*make_async()), k_specialized);
  EXPECT_EQ(compiler_->num_compiles, 1);
}

TEST_F(DispatcherAsyncTest, ACapturedCallKeepsTheGenericKernel) {
  auto dispatcher = make_async();
  run(*dispatcher);
  ASSERT_TRUE(dispatcher->wait_for(10s));
  loader_->captures = true;
  EXPECT_EQ(run(*dispatcher), k_generic);
  loader_->captures = false;
  EXPECT_EQ(run(*dispatcher), k_specialized);
  loader_->captures = true;
  EXPECT_EQ(run(*dispatcher), k_specialized);
}

TEST_F(DispatcherAsyncTest, AFailureIsSaidOnceAndTheGenericKernelStays) {
  auto dispatcher = make_async();
  compiler_->fails = true;
  run(*dispatcher);
  ASSERT_TRUE(dispatcher->wait_for(10s));
  EXPECT_EQ(run(*dispatcher), k_generic);
  EXPECT_EQ(run(*dispatcher), k_generic);
  EXPECT_EQ(compiler_->num_compiles, 1);
  EXPECT_EQ(log_.num_lines(), 1) << log_.text();
  EXPECT_TRUE(log_.contains("refused by the fake"));
  EXPECT_EQ(dispatcher->explain(fake_cuda_call(7)).reason,
            "linear_logp.fwd[size=7]@sm_90a: refused by the fake");

  compiler_->fails = false;
  dispatcher->configure(dispatcher->config());  // asked again
  run(*dispatcher);
  ASSERT_TRUE(dispatcher->wait_for(10s));
  EXPECT_EQ(run(*dispatcher), k_specialized);
}

TEST_F(DispatcherAsyncTest, WhatTheSystemRefusedIsAskedForAgain) {
  auto dispatcher = make_async();
  compiler_->num_refusals = 1;
  EXPECT_EQ(run(*dispatcher), k_generic);
  ASSERT_TRUE(dispatcher->wait_for(10s));
  EXPECT_EQ(run(*dispatcher), k_generic);  // takes note
  EXPECT_EQ(run(*dispatcher), k_generic);  // asks again
  ASSERT_TRUE(dispatcher->wait_for(10s));
  EXPECT_EQ(run(*dispatcher), k_specialized);
  EXPECT_EQ(log_.num_lines(), 1) << log_.text();
  EXPECT_TRUE(log_.contains("the generic kernel runs instead: threads: refused by the fake"));
}

TEST_F(DispatcherAsyncTest, WithoutAGenericKernelTheCallCompiles) {
  auto dispatcher = make(config(Policy::async));
  EXPECT_EQ(run(*dispatcher), k_specialized);
}

TEST_F(DispatcherAsyncTest, ForgottenFallbacksDoNotCompileTwice) {
  auto dispatcher = make_async();
  compiler_->delay_ms = 100;
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(run(*dispatcher), k_generic);
    dispatcher->configure(dispatcher->config());
  }
  ASSERT_TRUE(dispatcher->wait_for(10s));
  run(*dispatcher);
  EXPECT_EQ(run(*dispatcher), k_specialized);
  EXPECT_EQ(compiler_->num_compiles, 1);
}

TEST_F(DispatcherAsyncTest, ThreadsThatMissAtOnceCompileOnce) {
  auto dispatcher = make_async();
  compiler_->delay_ms = 20;
  std::vector<std::jthread> threads;
  for (int i = 0; i < 8; ++i) {
    threads.emplace_back([&] {
      for (int j = 0; j < 200; ++j) {
        const auto launched = run(*dispatcher, j % 5);
        EXPECT_NE(launched, "");
      }
    });
  }
  threads.clear();
  ASSERT_TRUE(dispatcher->wait_for(10s));
  EXPECT_EQ(compiler_->num_compiles, 5);
  EXPECT_LE(compiler_->most_at_once, 2);
}

TEST_F(DispatcherAsyncTest, DestructionDropsWhatIsQueued) {
  auto dispatcher = make_async();
  compiler_->delay_ms = 50;
  for (int size = 0; size < 20; ++size) run(*dispatcher, size);
  dispatcher.reset();
  EXPECT_LE(compiler_->num_compiles, 4);
  EXPECT_EQ(compiler_->num_at_once, 0);
}

}  // namespace
}  // namespace rlk::jit
