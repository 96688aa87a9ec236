// SPDX-License-Identifier: Apache-2.0
#include "cache/entry_name.hpp"

#include "cache/key.hpp"

#include <gtest/gtest.h>

namespace rlk::cache {
namespace {

const std::string k_digest = "0123456789abcdef0123456789abcdef";

TEST(EntryName, IsDigestCompilerSuffix) {
  EXPECT_EQ(entry_file_name(k_digest, "llvm-19.1.7"), k_digest + ".llvm-19.1.7.rlk");
}

TEST(EntryName, ComesBackForAnyCompiler) {
  std::string all;
  for (int i = 1; i < 20; ++i) all.push_back(static_cast<char>(i));
  for (const std::string compiler :
       {"llvm-19.1.7", "a b", "a/../b", "50%", "%41", "n\xc3\xa4h", "."}) {
    const std::string name = entry_file_name(k_digest, compiler);
    const auto parsed = parse_entry_file_name(name);
    ASSERT_TRUE(parsed) << name;
    EXPECT_EQ(parsed->digest, k_digest);
    EXPECT_EQ(parsed->compiler, compiler);
    EXPECT_EQ(name.find('/'), std::string::npos);
    EXPECT_EQ(name.find(' '), std::string::npos);
  }
}

TEST(EntryName, LongCompilersStayApartAndFit) {
  const std::string one = entry_file_name(k_digest, std::string(500, 'x') + '1');
  const std::string two = entry_file_name(k_digest, std::string(500, 'x') + '2');
  EXPECT_NE(one, two);
  EXPECT_LT(one.size(), 143u);
  EXPECT_TRUE(parse_entry_file_name(one));
}

TEST(EntryName, StrangersAreNoEntries) {
  for (const std::string& name :
       {std::string(), std::string("README"), k_digest, k_digest + ".rlk", k_digest + "..rlk.tmp",
        k_digest + ".llvm", k_digest + "-llvm.rlk", k_digest.substr(1) + "x.llvm.rlk",
        k_digest + "0.llvm.rlk", k_digest.substr(6) + "ABCDEF.llvm.rlk"}) {
    EXPECT_FALSE(parse_entry_file_name(name)) << name;
  }
}

TEST(EntryName, TempNamesAreNoEntriesAndNeverTwice) {
  const std::string name = entry_file_name(k_digest, "llvm");
  EXPECT_FALSE(parse_entry_file_name(temp_file_name(name)));
  EXPECT_NE(temp_file_name(name), temp_file_name(name));
  EXPECT_EQ(temp_file_name(name).front(), '.');
}

}  // namespace
}  // namespace rlk::cache
