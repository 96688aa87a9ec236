// SPDX-License-Identifier: Apache-2.0
// Merging, turns of several writers, manifests that are no good.
#include "jit/warm/manifest.hpp"

#include "runtime/error.hpp"
#include "templates/registry.hpp"
#include "tests/support/captured_log.hpp"
#include "tests/support/child_processes.hpp"
#include "tests/support/temp_dir.hpp"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <fstream>

namespace rlk::jit {
namespace {

using Names = std::vector<std::string>;

class ManifestTest : public ::testing::Test {
 protected:
  cache::StoreOptions store() const { return {.read_write = folder_.path()}; }
  void write(const std::string& text) const { std::ofstream(folder_ / k_manifest_name) << text; }

  test::TempDir folder_;
  test::CapturedLog log_;
};

TEST_F(ManifestTest, NamesAreMergedAndSorted) {
  EXPECT_EQ(read_manifest(folder_.path()), Names());
  add_to_manifest(store(), {"b", "a"});
  add_to_manifest(store(), {"c", "a"});
  EXPECT_EQ(read_manifest(folder_.path()), (Names{"a", "b", "c"}));
  EXPECT_EQ(log_.text(), "");
}

TEST_F(ManifestTest, ProcessesThatAddAtOnceLoseNothing) {
  std::vector<pid_t> children;
  for (int child = 0; child < 8; ++child) {
    children.push_back(test::start_child([&] {
      for (int i = 0; i < 10; ++i) {
        add_to_manifest(store(), {std::to_string(child) + '.' + std::to_string(i)});
      }
      return true;
    }));
  }
  for (const pid_t child : children) EXPECT_EQ(test::wait_for_child(child), "passed");
  EXPECT_EQ(read_manifest(folder_.path()).size(), 80u);
}

TEST_F(ManifestTest, OneThatIsNoGoodIsSaidAndReplaced) {
  for (const char* text :
       {"", "{", "[]", "7", R"({"kernels": ["a"]})", R"({"format": 2, "kernels": ["a"]})",
        R"({"format": 1})", R"({"format": 1, "kernels": [7]})"}) {
    log_.clear();
    write(text);
    EXPECT_EQ(read_manifest(folder_.path()), Names()) << text;
    EXPECT_EQ(log_.num_lines(), 1) << text << log_.text();
    EXPECT_TRUE(log_.contains("manifest not used")) << text;
    add_to_manifest(store(), {"b"});
    EXPECT_EQ(read_manifest(folder_.path()), Names{"b"}) << text;
  }
}

TEST_F(ManifestTest, WhatIsNoFileOrVeryDeepIsNotUsed) {
  const std::string path = folder_ / k_manifest_name;
  const std::string deep(2'000'000, '[');
  write(R"({"format": )" + deep + std::string(deep.size(), ']') + "}");
  EXPECT_EQ(read_manifest(folder_.path()), Names());
  std::filesystem::remove(path);
  ASSERT_EQ(::mkfifo(path.c_str(), 0600), 0);
  EXPECT_EQ(read_manifest(folder_.path()), Names());
  EXPECT_EQ(log_.num_lines(), 2) << log_.text();
}

TEST_F(ManifestTest, WhatIsGoneIsTrimmed) {
  add_to_manifest(store(), {"linear_logp.fwd[x=bf16 V=7 D=8]@sm_90a", "of a newer rlk"});
  trim_manifest(store(), templates::ops());
  EXPECT_EQ(read_manifest(folder_.path()), Names{"of a newer rlk"});
}

TEST_F(ManifestTest, AFolderThatIsGoneIsMadeAndOneThatCannotBeIsAnError) {
  add_to_manifest({.read_write = folder_ / "gone/cache"}, {"a"});
  EXPECT_EQ(read_manifest(folder_ / "gone/cache"), Names{"a"});
  write("");
  EXPECT_THROW(add_to_manifest({.read_write = folder_ / k_manifest_name + "/cache"}, {"a"}), Error);
}

}  // namespace
}  // namespace rlk::jit
