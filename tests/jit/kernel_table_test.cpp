// SPDX-License-Identifier: Apache-2.0
// Growth under readers, failures, waiting threads.
#include "jit/kernel_table.hpp"

#include "tests/support/fake_toolchain.hpp"

#include <gtest/gtest.h>

#include <thread>

namespace rlk::jit {
namespace {

Specialization spec_of(std::int64_t size) {
  return {&test::fake_op(), Pass::fwd, Target::x86_64_v2, {size}};
}

// A kernel whose name tells which one it is, and which counts itself while it lives.
class Kernels {
 public:
  std::atomic<int> num_alive{0};

  Variant variant(std::int64_t number) {
    ++num_alive;
    auto* kernel = new LoadedKernel;
    kernel->name = std::to_string(number);
    return {.kernel = KernelPtr(kernel, [this](const LoadedKernel* dead) {
              delete dead;
              --num_alive;
            })};
  }
  KernelTable::Held build(KernelTable& table, std::int64_t number) {
    return table.look_up_or_build(spec_of(number), [&] { return variant(number); });
  }
};

TEST(KernelTable, HoldsManyMoreThanItsFirstSlots) {
  Kernels kernels;
  KernelTable table;
  for (int i = 0; i < 5000; ++i) kernels.build(table, i);
  for (int i = 0; i < 5000; ++i)
    ASSERT_EQ(table.look_up(spec_of(i))->kernel->name, std::to_string(i));
  EXPECT_FALSE(table.look_up(spec_of(5000)));
}

TEST(KernelTable, ReadersSeeWholeEntriesWhileItGrows) {
  Kernels kernels;
  KernelTable table;
  std::atomic<bool> done = false;
  std::atomic<int> num_wrong = 0;
  std::jthread reader([&] {
    while (!done) {
      for (int i = 0; i < 4000; ++i) {
        const auto held = table.look_up(spec_of(i));
        if (held && held->kernel->name != std::to_string(i)) ++num_wrong;
      }
    }
  });
  for (int i = 0; i < 4000; ++i) kernels.build(table, i);
  done = true;
  reader.join();
  EXPECT_EQ(num_wrong, 0);
}

TEST(KernelTable, CompileErrorIsRememberedOthersAreNot) {
  KernelTable table;
  int num_builds = 0;
  const auto failing = [&]() -> Variant {
    ++num_builds;
    throw CompileError("no");
  };
  EXPECT_THROW(table.look_up_or_build(spec_of(1), failing), CompileError);
  EXPECT_THROW(table.look_up_or_build(spec_of(1), failing), CompileError);
  EXPECT_EQ(num_builds, 1);
  table.forget_fallbacks();
  EXPECT_THROW(table.look_up_or_build(spec_of(1), failing), CompileError);
  EXPECT_EQ(num_builds, 2);
  const auto unsupported = [&]() -> Variant {
    ++num_builds;
    throw Unsupported("no");
  };
  EXPECT_THROW(table.look_up_or_build(spec_of(2), unsupported), Unsupported);
  EXPECT_THROW(table.look_up_or_build(spec_of(2), unsupported), Unsupported);
  EXPECT_EQ(num_builds, 4);
}

TEST(KernelTable, ForgetFallbacksKeepsTheRest) {
  Kernels kernels;
  KernelTable table;
  kernels.build(table, 1);
  const auto fallback = [&] {
    Variant variant = kernels.variant(0);
    variant.is_fallback = true;
    return variant;
  };
  table.look_up_or_build(spec_of(2), fallback);
  table.forget_fallbacks();
  EXPECT_TRUE(table.look_up(spec_of(1)));
  EXPECT_FALSE(table.look_up(spec_of(2)));
  table.take_surplus(9);
  EXPECT_EQ(kernels.num_alive, 1);
}

TEST(KernelTable, UnloadsTheLeastRecentlyUsed) {
  Kernels kernels;
  KernelTable table;
  for (int i = 0; i < 4; ++i) kernels.build(table, i);
  table.look_up(spec_of(0));
  std::vector<std::string> unloaded;
  for (const auto& kernel : table.take_surplus(2)) unloaded.push_back(kernel->name);
  EXPECT_EQ(unloaded, (std::vector<std::string>{"1", "2"}));
  EXPECT_EQ(kernels.num_alive, 2);
  EXPECT_EQ(table.num_loaded(), 2u);
  EXPECT_TRUE(table.look_up(spec_of(0)));
  EXPECT_FALSE(table.look_up(spec_of(1)));
  EXPECT_TRUE(table.look_up(spec_of(3)));
  EXPECT_EQ(kernels.build(table, 1)->kernel->name, "1");
}

TEST(KernelTable, GenericKernelsAreNotCountedAndStay) {
  Kernels kernels;
  KernelTable table;
  const auto generic = spec_of(0).generic();
  table.look_up_or_build(generic, [&] { return kernels.variant(0); });
  kernels.build(table, 1);
  table.take_surplus(1);
  EXPECT_EQ(kernels.num_alive, 2);
  table.take_surplus(0);
  EXPECT_TRUE(table.look_up(generic));
  EXPECT_FALSE(table.look_up(spec_of(1)));
}

TEST(KernelTable, WhatIsHeldIsFreedByALaterUnload) {
  Kernels kernels;
  KernelTable table;
  {
    const auto held = kernels.build(table, 1);
    table.take_surplus(0);
    EXPECT_EQ(held->kernel->name, "1");
    EXPECT_EQ(kernels.num_alive, 1);
    std::jthread([&] { EXPECT_FALSE(table.look_up(spec_of(1))); });
  }
  table.take_surplus(0);
  EXPECT_EQ(kernels.num_alive, 0);
}

TEST(KernelTable, APinnedKernelStaysAndWorks) {
  Kernels kernels;
  KernelTable table;
  kernels.build(table, 1).pin();
  kernels.build(table, 2);
  table.take_surplus(1);
  EXPECT_TRUE(table.look_up(spec_of(1)));
  EXPECT_FALSE(table.look_up(spec_of(2)));
  {  // pinned after it was chosen
    const auto held = kernels.build(table, 3);
    table.take_surplus(0);
    held.pin();
  }
  table.take_surplus(0);
  EXPECT_EQ(kernels.num_alive, 2);
}

// Under the sanitizers a kernel that is freed too early is found.
TEST(KernelTable, ThreadsUseWhatOthersUnload) {
  constexpr int k_num_keys = 12;
  Kernels kernels;
  KernelTable table;
  std::atomic<int> num_wrong = 0;
  std::vector<std::jthread> threads;
  for (int thread = 0; thread < 4; ++thread) {
    threads.emplace_back([&, thread] {
      for (int i = 0; i < 4000; ++i) {
        const int key = (i * (thread + 1)) % k_num_keys;
        auto held = table.look_up(spec_of(key));
        if (!held) {
          held = kernels.build(table, key);
          table.take_surplus(3);
        }
        if (held->kernel->name != std::to_string(key)) ++num_wrong;
      }
    });
  }
  threads.clear();
  EXPECT_EQ(num_wrong, 0);
  table.take_surplus(3);
  EXPECT_EQ(kernels.num_alive, 3);
}

TEST(KernelTable, WaitersOfAFailedBuildThrowToo) {
  KernelTable table;
  std::atomic<int> num_builds = 0, num_thrown = 0;
  std::vector<std::jthread> threads;
  for (int i = 0; i < 8; ++i) {
    threads.emplace_back([&] {
      try {
        table.look_up_or_build(spec_of(1), [&]() -> Variant {
          ++num_builds;
          std::this_thread::sleep_for(std::chrono::milliseconds(30));
          throw CompileError("no");
        });
      } catch (const CompileError&) {
        ++num_thrown;
      }
    });
  }
  threads.clear();
  EXPECT_EQ(num_builds, 1);
  EXPECT_EQ(num_thrown, 8);
}

}  // namespace
}  // namespace rlk::jit
