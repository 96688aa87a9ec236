// SPDX-License-Identifier: Apache-2.0
// What the build embedded.
#include "templates/registry.hpp"

#include "jit/op.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <set>

namespace rlk::templates {
namespace {

TEST(RegistryTest, EveryOpHasItsSourceForEveryLevel) {
  ASSERT_FALSE(ops().empty());
  for (const jit::Op* op : ops()) {
    EXPECT_EQ(find_op(op->name), op);
    for (const char* level : {"x86-64-v2", "x86-64-v3", "x86-64-v4"}) {
      const CpuSource* source = find_cpu_source(op->name, level);
      ASSERT_NE(source, nullptr) << op->name << " " << level;
      constexpr std::array magic{std::byte{'B'}, std::byte{'C'}, std::byte{0xc0}, std::byte{0xde}};
      ASSERT_GT(source->bitcode.size(), magic.size());
      EXPECT_TRUE(std::ranges::equal(source->bitcode.first(magic.size()), magic));
    }
  }
}

TEST(RegistryTest, DigestsAreHexAndDiffer) {
  std::set<std::string_view> digests;
  for (const CpuSource& source : cpu_sources()) {
    EXPECT_EQ(source.digest.size(), 64U);
    EXPECT_TRUE(
        std::ranges::all_of(source.digest, [](unsigned char c) { return std::isxdigit(c); }));
    EXPECT_TRUE(digests.insert(source.digest).second) << source.op << " " << source.level;
  }
}

TEST(RegistryTest, UnknownNames) {
  EXPECT_EQ(find_op("nothing"), nullptr);
  EXPECT_EQ(find_cpu_source("nothing", "x86-64-v2"), nullptr);
  EXPECT_EQ(find_cpu_source("linear_logp", "x86-64-v9"), nullptr);
}

}  // namespace
}  // namespace rlk::templates
