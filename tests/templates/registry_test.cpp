// SPDX-License-Identifier: Apache-2.0
// What the build embedded.
#include "templates/registry.hpp"

#include "jit/op.hpp"
#include "tests/support/fake_toolchain.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <set>

namespace rlk::templates {
namespace {

TEST(RegistryTest, EveryOpHasItsSourceForEveryLevelOfItsVariants) {
  RLK_NEEDS_CPU_TEMPLATES();
  ASSERT_FALSE(ops().empty());
  for (const jit::Op* op : ops()) {
    EXPECT_EQ(find_op(op->name), op);
    for (const Target level : cpu_targets()) {
      const KernelSource* source = find_source(op->name, level);
      EXPECT_EQ(op->find_source(op->name, level), source);
      if (op->generic_variants(level).empty()) {
        EXPECT_EQ(source, nullptr) << op->name << " is of CUDA alone";
        EXPECT_EQ(op->name, "grpo_loss");
        continue;
      }
      ASSERT_NE(source, nullptr) << op->name << " " << name(level);
      constexpr std::array magic{std::byte{'B'}, std::byte{'C'}, std::byte{0xc0}, std::byte{0xde}};
      ASSERT_GT(source->code.size(), magic.size());
      EXPECT_TRUE(std::ranges::equal(source->code.first(magic.size()), magic));
    }
  }
}

TEST(RegistryTest, TheCudaTextIsOneForEveryTargetAndIncludesNothing) {
  for (const jit::Op* op : ops()) {
    const KernelSource* source = find_source(op->name, Target::sm_80);
    ASSERT_NE(source, nullptr) << op->name;
    for (const Target target : cuda_targets()) EXPECT_EQ(find_source(op->name, target), source);
    const std::string_view text(reinterpret_cast<const char*>(source->code.data()),
                                source->code.size());
    std::size_t num_entries = 0;
    for (const auto pass : {jit::Pass::fwd, jit::Pass::bwd}) {
      for (const std::string_view entry : op->entries(pass, Backend::cuda)) {
        EXPECT_NE(text.find(entry), std::string_view::npos) << entry;
        ++num_entries;
      }
    }
    EXPECT_GT(num_entries, 0u) << op->name;
    EXPECT_EQ(text.find("#include"), std::string_view::npos);
    EXPECT_EQ(text.find("#pragma once"), std::string_view::npos);
  }
}

TEST(RegistryTest, DigestsAreHexAndDiffer) {
  std::set<std::string_view> digests;
  for (const KernelSource& source : kernel_sources()) {
    EXPECT_EQ(source.digest.size(), 64U);
    EXPECT_TRUE(
        std::ranges::all_of(source.digest, [](unsigned char c) { return std::isxdigit(c); }));
    EXPECT_TRUE(digests.insert(source.digest).second) << source.op << " " << source.family;
  }
}

TEST(RegistryTest, UnknownNames) {
  EXPECT_EQ(find_op("nothing"), nullptr);
  EXPECT_EQ(find_source("nothing", Target::x86_64_v2), nullptr);
  EXPECT_EQ(find_source("nothing", Target::sm_90a), nullptr);
}

}  // namespace
}  // namespace rlk::templates
