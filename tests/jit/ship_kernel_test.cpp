// SPDX-License-Identifier: Apache-2.0
// A kernel is compiled once for a folder, and one that is slow unseen is refused each time.
#include "jit/ship_kernel.hpp"

#include "jit/build_key.hpp"
#include "jit/metadata.hpp"
#include "tests/support/fake_toolchain.hpp"
#include "tests/support/temp_dir.hpp"

#include <gtest/gtest.h>

namespace rlk::jit {
namespace {

class ShipKernelTest : public ::testing::Test, public Compiler {
 protected:
  std::string identity() const override { return fake_.identity(); }
  bool available() const noexcept override { return true; }
  std::string why_not() const override { return ""; }
  CompiledCode compile(const CompileRequest& request) override {
    CompiledCode compiled = fake_.compile(request);
    compiled.stats = stats_;
    return compiled;
  }

  ShippedKernel ship(Target target) {
    return ship_kernel({&test::fake_op(), Pass::fwd, target, {7}}, *this, store_);
  }

  static CompileStats good() {
    CompileStats stats;
    stats.local_bytes = stats.spilled_bytes = 0;
    return stats;
  }

  test::TempDir folder_;
  cache::DiskStore store_{{.read_write = folder_ / "cache"}};
  test::FakeCompiler fake_;
  CompileStats stats_ = good();
};

TEST_F(ShipKernelTest, TheSecondTimeItIsTheStored) {
  const auto first = ship(Target::sm_80), second = ship(Target::sm_80);
  EXPECT_TRUE(first.is_new);
  EXPECT_FALSE(second.is_new);
  EXPECT_EQ(first.entry, second.entry);
  EXPECT_TRUE(ship(Target::sm_86).is_new);
  fake_.id = "fake-2";
  EXPECT_TRUE(ship(Target::sm_80).is_new) << "another compiler's code is not this one's";
  EXPECT_EQ(fake_.num_compiles, 3);
}

TEST_F(ShipKernelTest, WhatIsShippedHasTheSameBytesWheneverItWasCompiled) {
  stats_.compile_ms = 186.6;
  const auto shipped = ship(Target::sm_80);
  const auto told = metadata_from_json(shipped.entry.metadata);
  ASSERT_TRUE(told);
  EXPECT_EQ(told->created_s, -1);
  EXPECT_EQ(told->stats.compile_ms, -1);
  EXPECT_EQ(told->stats.local_bytes, 0);
  // What an older build has left is replaced, and not compiled again.
  auto older = shipped.entry;
  older.metadata.insert(1, R"("created":1700000000,)");
  ASSERT_TRUE(store_.put(older, fake_.identity()));
  const auto again = ship(Target::sm_80);
  EXPECT_FALSE(again.is_new);
  EXPECT_EQ(again.entry, shipped.entry);
  EXPECT_EQ(ship(Target::sm_80).entry, shipped.entry);
  EXPECT_EQ(fake_.num_compiles, 1);
}

TEST_F(ShipKernelTest, WhatIsSlowIsRefusedAndNotStored) {
  for (auto member : {&CompileStats::spilled_bytes, &CompileStats::local_bytes}) {
    for (const std::int64_t bytes : {8, -1}) {  // -1: not known
      stats_ = good();
      stats_.*member = bytes;
      EXPECT_THROW(ship(Target::sm_80), CompileError);
    }
  }
  stats_ = good();
  stats_.serializes_wgmma = true;
  for (int i = 0; i < 2; ++i) EXPECT_THROW(ship(Target::sm_90a), CompileError) << "each time";
  EXPECT_EQ(fake_.num_compiles, 6);
  EXPECT_TRUE(store_.list().empty());
}

TEST_F(ShipKernelTest, PtxHasNoSuchNumbers) {
  stats_ = {};
  EXPECT_TRUE(ship(Target::compute_80).is_new);
}

}  // namespace
}  // namespace rlk::jit
