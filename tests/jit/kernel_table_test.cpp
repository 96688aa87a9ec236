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
  Variant fallback(std::int64_t number) {
    Variant made = variant(number);
    made.fallback = Fallback::generic;
    return made;
  }
  const Variant& build(KernelTable& table, std::int64_t number) {
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
        const Variant* found = table.look_up(spec_of(i));
        if (found && found->kernel->name != std::to_string(i)) ++num_wrong;
      }
    }
  });
  for (int i = 0; i < 4000; ++i) kernels.build(table, i);
  done = true;
  reader.join();
  EXPECT_EQ(num_wrong, 0);
}

TEST(KernelTable, WhatTheSystemRefusedIsNotRemembered) {
  Kernels kernels;
  KernelTable table;
  for (int i = 0; i < 2; ++i) {
    EXPECT_THROW(table.look_up_or_build(spec_of(1), []() -> Variant { throw Refused("no"); }),
                 Refused);
  }
  const auto build_refused = [&]() -> Variant {
    Variant built = kernels.fallback(2);
    built.is_refused = true;
    return built;
  };
  const Variant& first = table.look_up_or_build(spec_of(1), build_refused);
  EXPECT_EQ(first.kernel->name, "2");
  EXPECT_FALSE(table.look_up(spec_of(1)));
  // Nor does a process that is refused again and again grow.
  EXPECT_EQ(&table.look_up_or_build(spec_of(1), build_refused), &first);
  EXPECT_EQ(kernels.num_alive, 1);
  EXPECT_FALSE(kernels.build(table, 1).is_fallback());
  EXPECT_FALSE(table.look_up(spec_of(1))->is_fallback());
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
  table.look_up_or_build(spec_of(2), [&] { return kernels.fallback(0); });
  table.forget_fallbacks();
  EXPECT_TRUE(table.look_up(spec_of(1)));
  EXPECT_FALSE(table.look_up(spec_of(2)));
  EXPECT_EQ(kernels.build(table, 2).kernel->name, "2");
}

// A reader may still be inside one, and a captured graph may launch its kernel.
TEST(KernelTable, WhatWasReplacedOrForgottenStaysUsable) {
  Kernels kernels;
  {
    KernelTable table;
    const Variant& replaced =
        table.look_up_or_build(spec_of(1), [&] { return kernels.fallback(0); });
    EXPECT_EQ(table.replace_fallback(spec_of(1), kernels.variant(1)).kernel->name, "1");
    const Variant& forgotten =
        table.look_up_or_build(spec_of(2), [&] { return kernels.fallback(5); });
    table.forget_fallbacks();
    for (int i = 10; i < 3000; ++i) kernels.build(table, i);
    EXPECT_EQ(replaced.kernel->name, "0");
    EXPECT_EQ(forgotten.kernel->name, "5");
    EXPECT_EQ(kernels.num_alive, 3 + 2990);
  }
  EXPECT_EQ(kernels.num_alive, 0);
}

TEST(KernelTable, OnlyAFallbackIsReplaced) {
  Kernels kernels;
  KernelTable table;
  kernels.build(table, 1);
  EXPECT_EQ(table.replace_fallback(spec_of(1), kernels.variant(7)).kernel->name, "1");
  EXPECT_EQ(table.replace_fallback(spec_of(2), kernels.variant(2)).kernel->name, "2");
}

TEST(KernelTable, CountsSpecializedKernelsOnce) {
  Kernels kernels;
  KernelTable table;
  table.look_up_or_build(spec_of(0).generic(), [&] { return kernels.variant(0); });
  table.look_up_or_build(spec_of(1), [&] { return kernels.fallback(0); });
  EXPECT_EQ(table.num_loaded(), 0u);
  Variant alternative = kernels.build(table, 2);
  alternative.fallback = Fallback::alternative;
  table.look_up_or_build(spec_of(3), [&] { return alternative; });
  EXPECT_EQ(table.num_loaded(), 1u);
  kernels.build(table, 4);
  EXPECT_EQ(table.num_loaded(), 2u);
}

// Under the sanitizers a variant that is freed too early is found.
TEST(KernelTable, ThreadsUseWhatOthersReplaceAndForget) {
  constexpr int k_num_keys = 12;
  Kernels kernels;
  KernelTable table;
  std::atomic<int> num_wrong = 0;
  std::vector<std::jthread> threads;
  for (int thread = 0; thread < 4; ++thread) {
    threads.emplace_back([&, thread] {
      for (int i = 0; i < 4000; ++i) {
        const int key = (i * (thread + 1)) % k_num_keys;
        const Variant* found = table.look_up(spec_of(key));
        if (found == nullptr) {
          found = &table.look_up_or_build(spec_of(key), [&] { return kernels.fallback(key); });
        } else if (i % 97 == 0) {
          found = &table.replace_fallback(spec_of(key), kernels.fallback(key));
        } else if (i % 101 == 0) {
          table.forget_fallbacks();
        }
        if (found->kernel->name != std::to_string(key)) ++num_wrong;
      }
    });
  }
  threads.clear();
  EXPECT_EQ(num_wrong, 0);
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
