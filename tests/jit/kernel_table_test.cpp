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

TEST(KernelTable, HoldsManyMoreThanItsFirstSlots) {
  KernelTable table;
  std::vector<LoadedKernel> kernels(5000);
  for (int i = 0; i < 5000; ++i) {
    table.look_up_or_build(spec_of(i), [&] { return Variant{&kernels[i], false, {}}; });
  }
  for (int i = 0; i < 5000; ++i) ASSERT_EQ(table.look_up(spec_of(i))->kernel, &kernels[i]);
  EXPECT_EQ(table.look_up(spec_of(5000)), nullptr);
}

TEST(KernelTable, ReadersSeeWholeEntriesWhileItGrows) {
  KernelTable table;
  std::vector<LoadedKernel> kernels(4000);
  std::atomic<bool> done = false;
  std::atomic<int> num_wrong = 0;
  std::jthread reader([&] {
    while (!done) {
      for (int i = 0; i < 4000; ++i) {
        const auto* variant = table.look_up(spec_of(i));
        if (variant != nullptr && variant->kernel != &kernels[i]) ++num_wrong;
      }
    }
  });
  for (int i = 0; i < 4000; ++i) {
    table.look_up_or_build(spec_of(i), [&] { return Variant{&kernels[i], false, {}}; });
  }
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
  KernelTable table;
  LoadedKernel own, generic;
  table.look_up_or_build(spec_of(1), [&] { return Variant{&own, false, {}}; });
  table.look_up_or_build(spec_of(2), [&] { return Variant{&generic, true, "why"}; });
  table.forget_fallbacks();
  EXPECT_NE(table.look_up(spec_of(1)), nullptr);
  EXPECT_EQ(table.look_up(spec_of(2)), nullptr);
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
