// SPDX-License-Identifier: Apache-2.0
// Layers, the compiler rule, recency, rights and listing of a healthy store.
#include "cache/disk_store.hpp"

#include "tests/cache/store_fixture.hpp"

#include <sys/wait.h>
#include <unistd.h>

namespace rlk::cache {
namespace {

TEST_F(StoreTest, WhatWasPutIsGot) {
  DiskStore one = store();
  EXPECT_FALSE(one.get(key_of(1), compiler_a));
  one.put(entry_of(1), compiler_a);
  EXPECT_EQ(one.get(key_of(1), compiler_a), entry_of(1));
  EXPECT_EQ(store().get(key_of(1), compiler_a), entry_of(1));
  EXPECT_FALSE(one.get(key_of(2), compiler_a));
  EXPECT_EQ(log_.text(), "");
}

TEST_F(StoreTest, PutReplaces) {
  store().put(entry_of(1, "old"), compiler_a);
  store().put(entry_of(1, "new"), compiler_a);
  EXPECT_EQ(store().get(key_of(1), compiler_a), entry_of(1, "new"));
  EXPECT_EQ(names_in(folder_).size(), 1u);
}

TEST_F(StoreTest, NothingIsMadeBeforeTheFirstPut) {
  DiskStore one = store();
  one.get(key_of(1), compiler_a);
  one.get(key_of(1), "");
  one.list();
  one.layers();
  EXPECT_FALSE(std::filesystem::exists(folder_));
  EXPECT_EQ(log_.text(), "");
}

TEST_F(StoreTest, WithoutLayersEverythingIsAMiss) {
  DiskStore none{StoreOptions{}};
  none.put(entry_of(1), compiler_a);
  EXPECT_FALSE(none.get(key_of(1), compiler_a));
  EXPECT_TRUE(none.list().empty());
  EXPECT_EQ(log_.text(), "");
}

TEST_F(StoreTest, TheReadWriteLayerWantsTheCompilerAtHand) {
  store().put(entry_of(1), compiler_a);
  EXPECT_FALSE(store().get(key_of(1), compiler_b));
  store().put(entry_of(1, "b"), compiler_b);
  EXPECT_EQ(store().get(key_of(1), compiler_a), entry_of(1));
  EXPECT_EQ(store().get(key_of(1), compiler_b), entry_of(1, "b"));
}

TEST_F(StoreTest, WithoutACompilerTheNewestEntryOfTheKeyWillDo) {
  store().put(entry_of(1, "a"), compiler_a);
  store().put(entry_of(1, "b"), compiler_b);
  store().put(entry_of(2, "other"), compiler_b);
  set_age(path_of(1, compiler_a), 100);
  set_age(path_of(1, compiler_b), 200);
  EXPECT_EQ(store().get(key_of(1), ""), entry_of(1, "a"));
  set_age(path_of(1, compiler_a), 300);
  EXPECT_EQ(store().get(key_of(1), ""), entry_of(1, "b"));
}

TEST_F(StoreTest, ADamagedNewestGivesWayToTheNext) {
  store().put(entry_of(1, "a"), compiler_a);
  set_age(path_of(1, compiler_a), 100);
  test::write_file(path_of(1, compiler_b), "damage");
  EXPECT_EQ(store().get(key_of(1), ""), entry_of(1, "a"));
}

TEST_F(StoreTest, AReadOnlyLayerGivesAnyCompilersEntryTheExactOneFirst) {
  const std::string below = layer_with("below", entry_of(1, "a"), compiler_a);
  DiskStore layered({folder_, {below}});
  EXPECT_EQ(layered.get(key_of(1), compiler_b), entry_of(1, "a"));
  EXPECT_EQ(layered.get(key_of(1), ""), entry_of(1, "a"));
  layer_with("below", entry_of(1, "b"), compiler_b);
  set_age(below + '/' + entry_file_name(key_of(1).digest(), compiler_b), 100);
  EXPECT_EQ(layered.get(key_of(1), compiler_b), entry_of(1, "b"));
  EXPECT_EQ(layered.get(key_of(1), ""), entry_of(1, "a"));
}

TEST_F(StoreTest, LayersAreTriedInOrder) {
  const std::string first = layer_with("first", entry_of(1, "first"), compiler_a);
  const std::string second = layer_with("second", entry_of(1, "second"), compiler_a);
  layer_with("second", entry_of(2, "second"), compiler_a);
  DiskStore layered({folder_, {first, temp_ / "absent", second}});
  EXPECT_EQ(layered.get(key_of(1), compiler_a), entry_of(1, "first"));
  EXPECT_EQ(layered.get(key_of(2), compiler_a), entry_of(2, "second"));
  layered.put(entry_of(1, "ours"), compiler_a);
  EXPECT_EQ(layered.get(key_of(1), compiler_a), entry_of(1, "ours"));
  EXPECT_EQ(log_.text(), "");
}

TEST_F(StoreTest, ReadOnlyLayersAreNeverWritten) {
  const std::string below = layer_with("below", entry_of(1), compiler_a);
  const std::string path = below + '/' + entry_file_name(key_of(1).digest(), compiler_a);
  set_age(path, 100000);
  const auto before = std::filesystem::last_write_time(path);
  DiskStore layered({std::nullopt, {below}});
  layered.put(entry_of(2), compiler_a);
  EXPECT_TRUE(layered.get(key_of(1), compiler_a));
  EXPECT_EQ(std::filesystem::last_write_time(path), before);
  EXPECT_EQ(names_in(below).size(), 1u);
}

// Package tools may install files as links into a store of theirs.
TEST_F(StoreTest, ReadOnlyLayersMayHoldLinks) {
  const std::string below = layer_with("below", entry_of(1), compiler_a);
  const std::string name = entry_file_name(key_of(1).digest(), compiler_a);
  std::filesystem::rename(below + '/' + name, temp_ / "target");
  std::filesystem::create_symlink(temp_ / "target", below + '/' + name);
  EXPECT_TRUE(DiskStore({std::nullopt, {below}}).get(key_of(1), compiler_a));
}

TEST_F(StoreTest, AHitIsStampedAtMostHourly) {
  store().put(entry_of(1), compiler_a);
  set_age(path_of(1), 1800);
  auto before = std::filesystem::last_write_time(path_of(1));
  EXPECT_TRUE(store().get(key_of(1), compiler_a));
  EXPECT_EQ(std::filesystem::last_write_time(path_of(1)), before);
  set_age(path_of(1), 7200);
  before = std::filesystem::last_write_time(path_of(1));
  EXPECT_TRUE(store().get(key_of(1), compiler_a));
  EXPECT_GT(std::filesystem::last_write_time(path_of(1)), before + std::chrono::seconds(7000));
}

class StoreUmaskTest : public StoreTest, public testing::WithParamInterface<int> {
 protected:
  void SetUp() override { before_ = ::umask(static_cast<mode_t>(GetParam())); }
  void TearDown() override { ::umask(before_); }

 private:
  mode_t before_ = 0;
};

TEST_P(StoreUmaskTest, FolderAndEntriesAreOursAlone) {
  store().put(entry_of(1), compiler_a);
  EXPECT_EQ(mode_of(folder_), 0700u);
  EXPECT_EQ(mode_of(path_of(1)), 0600u);
  EXPECT_EQ(store().get(key_of(1), compiler_a), entry_of(1));
  EXPECT_EQ(log_.text(), "");
}

INSTANTIATE_TEST_SUITE_P(Store, StoreUmaskTest, testing::Values(0, 022, 077, 0777));

class StorePathTest : public StoreTest, public testing::WithParamInterface<std::string> {};

TEST_P(StorePathTest, AnyFolderNameWorks) {
  folder_ = temp_ / GetParam();
  store().put(entry_of(1), compiler_a);
  EXPECT_EQ(store().get(key_of(1), compiler_a), entry_of(1));
  EXPECT_EQ(store().get(key_of(1), ""), entry_of(1));
  EXPECT_EQ(store().list().size(), 1u);
  EXPECT_EQ(log_.text(), "");
}

INSTANTIATE_TEST_SUITE_P(Store, StorePathTest,
                         testing::Values("a b", "it's \"quoted\"",
                                         "n\xc3\xa4h/\xe6\xbc\xa2\xe5\xad\x97", "$HOME;`x`",
                                         "new\nline", "{}%s", "slash/", "a//b"));

TEST_F(StoreTest, AFolderRemovedWhileRunningIsMadeAgain) {
  DiskStore one = store();
  one.put(entry_of(1), compiler_a);
  std::filesystem::remove_all(folder_);
  EXPECT_FALSE(one.get(key_of(1), compiler_a));
  one.put(entry_of(1), compiler_a);
  EXPECT_TRUE(one.get(key_of(1), compiler_a));
  EXPECT_EQ(mode_of(folder_), 0700u);
  EXPECT_EQ(log_.text(), "");
}

TEST_F(StoreTest, OversizedEntriesAndNamelessCompilersAreNotStored) {
  Entry entry = entry_of(1);
  entry.metadata.assign(max_metadata_bytes + 1, ' ');
  store().put(entry, compiler_a);
  store().put(entry_of(1), "");
  EXPECT_EQ(log_.num_lines(), 2) << log_.text();
  EXPECT_TRUE(names_in(folder_).empty());
}

TEST_F(StoreTest, ListShowsEveryLayer) {
  const std::string below = layer_with("below", entry_of(2), compiler_b);
  store().put(entry_of(1), compiler_a);
  set_age(path_of(1), 500);
  const auto listed = DiskStore({folder_, {below}}).list();
  ASSERT_EQ(listed.size(), 2u);
  EXPECT_EQ(listed[0].path, path_of(1));
  EXPECT_EQ(listed[0].digest, key_of(1).digest());
  EXPECT_EQ(listed[0].compiler, compiler_a);
  EXPECT_EQ(listed[0].problem, "");
  EXPECT_EQ(listed[0].key, key_of(1).bytes);
  EXPECT_EQ(listed[0].metadata, entry_of(1).metadata);
  EXPECT_EQ(listed[0].payload_bytes, entry_of(1).payload.size());
  EXPECT_EQ(listed[0].file_bytes, std::filesystem::file_size(path_of(1)));
  EXPECT_NEAR(static_cast<double>(std::time(nullptr) - listed[0].modified_s), 500, 30);
  EXPECT_TRUE(listed[0].layer.read_write);
  EXPECT_EQ(listed[1].compiler, compiler_b);
  EXPECT_EQ(listed[1].layer.folder, below);
  EXPECT_FALSE(listed[1].layer.read_write);
}

TEST_F(StoreTest, ListSkipsStrangersAndTellsOfDamage) {
  store().put(entry_of(1), compiler_a);
  test::write_file(folder_ + "/README", "hello");
  test::write_file(folder_ + "/.0123.tmp", "half");
  test::write_file(path_of(2), "damage");
  const auto listed = store().list();
  ASSERT_EQ(listed.size(), 2u);
  for (const auto& entry : listed) EXPECT_EQ(entry.problem.empty(), entry.path == path_of(1));
  EXPECT_EQ(log_.text(), "");
}

TEST_F(StoreTest, LayersTellTheirState) {
  const std::string below = layer_with("below", entry_of(1), compiler_a);
  auto states = DiskStore({folder_, {below, temp_ / "absent"}}).layers();
  ASSERT_EQ(states.size(), 3u);
  EXPECT_TRUE(states[0].layer.read_write);
  EXPECT_FALSE(states[0].exists);
  EXPECT_TRUE(states[0].writable);
  EXPECT_EQ(states[0].problem, "");
  EXPECT_TRUE(states[1].exists);
  EXPECT_FALSE(states[2].exists);
  std::filesystem::create_directory(folder_);
  ASSERT_EQ(::chmod(folder_.c_str(), 0777), 0);
  states = store().layers();
  EXPECT_NE(states[0].problem.find("chmod"), std::string::npos) << states[0].problem;
}

// As in a container that runs under any number and without a home: no name, no rights, no throw.
TEST_F(StoreTest, AnUnknownUserMissesAndStoresNothing) {
  if (::geteuid() != 0) GTEST_SKIP() << "running as another user needs root";
  ASSERT_EQ(::chmod(temp_.path().c_str(), 0755), 0);
  store().put(entry_of(1), compiler_a);
  const pid_t child = ::fork();
  if (child == 0) {
    if (::setgid(12345) != 0 || ::setuid(12345) != 0) ::_exit(2);
    DiskStore private_one = store();  // of another user: refused
    bool passed = !private_one.get(key_of(1), compiler_a);
    private_one.put(entry_of(2), compiler_a);
    DiskStore unwritable({.read_write = temp_ / "new"});  // its parent is not ours
    unwritable.put(entry_of(2), compiler_a);
    passed = passed && !unwritable.get(key_of(2), compiler_a) && log_.contains("not writable");
    ::_exit(passed ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(names_in(folder_).size(), 1u);
  EXPECT_FALSE(std::filesystem::exists(temp_ / "new"));
}

}  // namespace
}  // namespace rlk::cache
