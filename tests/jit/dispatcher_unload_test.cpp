// SPDX-License-Identifier: Apache-2.0
// RLK_MAX_KERNELS: what is unloaded, what stays, what comes back.
#include "tests/jit/dispatcher_cuda_fixture.hpp"

#include <thread>
#include <vector>

namespace rlk::jit {
namespace {

using namespace std::chrono_literals;
using test::fake_cuda_call;
using test::what;

class DispatcherUnloadTest : public DispatcherCudaTest {
 protected:
  std::unique_ptr<Dispatcher> make_small(int max_kernels, Policy policy = Policy::sync) {
    Config small = config(policy);
    small.settings.max_kernels = max_kernels;
    return make(small);
  }
  static std::string run(Dispatcher& dispatcher, std::int64_t size) {
    const auto call = fake_cuda_call(size);
    dispatcher.run(call);
    return call.launched;
  }
  static std::string name(std::int64_t size) {
    return "linear_logp.fwd[size=" + std::to_string(size) + "]@sm_90a";
  }
};

TEST_F(DispatcherUnloadTest, NeverMoreThanAsked) {
  auto dispatcher = make_small(3);
  for (int size = 0; size < 10; ++size) {
    EXPECT_EQ(run(*dispatcher, size), name(size));
    EXPECT_EQ(loader_->num_loaded, std::min(size + 1, 3));
  }
  EXPECT_EQ(dispatcher->cache_info().loaded, 3);
  EXPECT_EQ(dispatcher->cache_info().unloads, 7);
}

TEST_F(DispatcherUnloadTest, WhatComesBackIsLoadedFromTheCache) {
  auto dispatcher = make_small(2);
  for (int size = 0; size < 3; ++size) run(*dispatcher, size);
  EXPECT_EQ(run(*dispatcher, 0), name(0));
  EXPECT_EQ(compiler_->num_compiles, 3);
  EXPECT_EQ(dispatcher->cache_info().disk_hits, 1);
}

TEST_F(DispatcherUnloadTest, ACallKeepsItsKernelFromBeingTheLeastRecentlyUsed) {
  auto dispatcher = make_small(2);
  for (const int size : {1, 2, 1, 3}) run(*dispatcher, size);
  EXPECT_EQ(loader_->num_loads, 3);
  run(*dispatcher, 1);
  EXPECT_EQ(loader_->num_loads, 3);
  run(*dispatcher, 2);
  EXPECT_EQ(loader_->num_loads, 4);
}

TEST_F(DispatcherUnloadTest, AKernelOfACapturedCallIsNeverUnloaded) {
  auto dispatcher = make_small(1);
  run(*dispatcher, 7);
  loader_->captures = true;
  run(*dispatcher, 7);
  loader_->captures = false;
  for (int size = 0; size < 5; ++size) run(*dispatcher, size);
  EXPECT_EQ(loader_->num_loaded, 2);
  const int num_loads = loader_->num_loads;
  EXPECT_EQ(run(*dispatcher, 7), name(7));
  EXPECT_EQ(loader_->num_loads, num_loads);
}

TEST_F(DispatcherUnloadTest, KernelsThatTookOverAreUnloadedToo) {
  make_builtin_layer(Target::sm_90a);
  auto dispatcher = make_small(2, Policy::async);
  for (int round = 0; round < 2; ++round) {
    for (int size = 0; size < 5; ++size) run(*dispatcher, size);
    ASSERT_TRUE(dispatcher->wait_for(10s));
  }
  for (int size = 0; size < 5; ++size) EXPECT_EQ(run(*dispatcher, size), name(size));
  EXPECT_EQ(dispatcher->cache_info().loaded, 2);
  EXPECT_EQ(loader_->num_loaded, 3);  // and the generic one
  EXPECT_EQ(compiler_->num_compiles, 5);
}

TEST_F(DispatcherUnloadTest, AGenericKernelStays) {
  make_builtin_layer(Target::sm_90a);
  auto dispatcher = make_small(1, Policy::off);
  for (int size = 0; size < 5; ++size) run(*dispatcher, size);
  EXPECT_EQ(loader_->num_loads, 1);
  EXPECT_EQ(loader_->num_loaded, 1);
}

TEST_F(DispatcherUnloadTest, ThreadsThatCompeteForFewPlacesAllRunTheirOwn) {
  auto dispatcher = make_small(2);
  std::atomic<int> num_wrong = 0;
  std::vector<std::jthread> threads;
  for (int thread = 0; thread < 4; ++thread) {
    threads.emplace_back([&, thread] {
      for (int i = 0; i < 100; ++i) {
        const int size = (i * (thread + 1)) % 7;
        if (run(*dispatcher, size) != name(size)) ++num_wrong;
      }
    });
  }
  threads.clear();
  EXPECT_EQ(num_wrong, 0);
  run(*dispatcher, 99);
  EXPECT_EQ(dispatcher->cache_info().loaded, 2);
}

// Else each process would find the entry, refuse it, and compile it again.
TEST_F(DispatcherUnloadTest, WhatDoesNotLoadIsNotStored) {
  make_builtin_layer(Target::sm_90a);
  loader_->refused = "size=7";
  EXPECT_EQ(run(*make(), 7), "linear_logp.fwd[ generic]@sm_90a");
  EXPECT_TRUE(log_.contains("no code for this device"));
  EXPECT_EQ(make()->explain(fake_cuda_call(7)).source, "compile");
}

}  // namespace
}  // namespace rlk::jit
