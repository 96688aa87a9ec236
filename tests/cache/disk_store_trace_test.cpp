// SPDX-License-Identifier: Apache-2.0
// A trace tells what a get comes to, and touches nothing.
#include "tests/cache/store_fixture.hpp"

#include <random>

namespace rlk::cache {
namespace {

TEST_F(StoreTest, ATraceTellsEachCandidateInOrder) {
  const std::string below = layer_with("below", entry_of(1, "old"), "llvm-18");
  const std::string damaged = below + '/' + entry_file_name(key_of(1).digest(), "llvm-17");
  test::write_file(damaged, "damage");
  set_age(damaged, -100);  // the newer one
  store().put(entry_of(1, "a"), compiler_a);
  log_.clear();
  DiskStore layered({folder_, {temp_ / "absent", below}});
  const auto found = layered.trace(key_of(1), compiler_b);
  ASSERT_EQ(found.size(), 3u);
  EXPECT_EQ(found[0].path, path_of(1, compiler_a));
  EXPECT_TRUE(found[0].layer.read_write);
  EXPECT_EQ(found[0].problem, "made by llvm-19.1.7; the read-write layer wants llvm-20.1.0");
  EXPECT_EQ(found[1].path, damaged);
  EXPECT_NE(found[1].problem, "");
  EXPECT_EQ(found[2].compiler, "llvm-18");
  EXPECT_TRUE(is_hit(found));
  EXPECT_EQ(log_.text(), "");
  EXPECT_EQ(layered.trace(key_of(1), "").size(), 1u) << "any will do";
  EXPECT_TRUE(layered.trace(key_of(2), "").empty());
  EXPECT_FALSE(is_hit({}));
}

TEST_F(StoreTest, ATraceOfARefusedFolderNamesIt) {
  store().put(entry_of(1), compiler_a);
  ASSERT_EQ(::chmod(folder_.c_str(), 0722), 0);
  const auto found = store().trace(key_of(1), compiler_a);
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0].path, folder_);
  EXPECT_NE(found[0].problem.find("chmod go-w"), std::string::npos) << found[0].problem;
  EXPECT_EQ(log_.text(), "");
}

TEST_F(StoreTest, ATraceStampsNothing) {
  store().put(entry_of(1), compiler_a);
  set_age(path_of(1), 100000);
  const auto before = std::filesystem::last_write_time(path_of(1));
  EXPECT_TRUE(is_hit(store().trace(key_of(1), compiler_a)));
  EXPECT_EQ(std::filesystem::last_write_time(path_of(1)), before);
}

TEST_F(StoreTest, ATraceEndsAtWhatAGetGives) {
  std::mt19937 random(7);
  const std::vector<std::string> folders = {folder_, temp_ / "image", temp_ / "builtin"};
  int num_hits = 0;
  for (int round = 0; round < 60; ++round) {
    SCOPED_TRACE(round);
    for (const auto& folder : folders) {
      std::filesystem::remove_all(folder);
      for (const std::string made_by : {compiler_a, compiler_b, "llvm-21.0.0"}) {
        if (random() % 3 != 0) continue;
        layer_with(std::filesystem::path(folder).filename(), entry_of(1, folder + made_by),
                   made_by);
        const std::string file = folder + '/' + entry_file_name(key_of(1).digest(), made_by);
        set_age(file, static_cast<int>(random() % 3));
        if (random() % 3 == 0) std::filesystem::resize_file(file, 100);
        if (random() % 4 == 0) ::chmod(file.c_str(), 0622);
      }
    }
    if (random() % 8 == 0) ::chmod(folder_.c_str(), 0722);
    DiskStore layered({folder_, {folders[1], folders[2]}});
    for (const std::string asked : {compiler_a, ""}) {
      const auto found = layered.trace(key_of(1), asked);
      const auto entry = layered.get(key_of(1), asked);
      ASSERT_EQ(is_hit(found), entry.has_value());
      if (!entry) continue;
      ++num_hits;
      const Candidate& given = found.back();
      EXPECT_EQ(*entry, entry_of(1, given.layer.folder + given.compiler));
    }
  }
  EXPECT_GT(num_hits, 30);
}

}  // namespace
}  // namespace rlk::cache
