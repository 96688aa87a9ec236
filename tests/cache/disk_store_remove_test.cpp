// SPDX-License-Identifier: Apache-2.0
// What a person asks of a store: files and looks, whole reads, removals.
#include "cache/disk_store.hpp"
#include "tests/cache/store_fixture.hpp"
#include "tests/support/faulty_file_system.hpp"

#include <unistd.h>

#include <cerrno>

namespace rlk::cache {
namespace {

using Names = std::vector<std::string>;

TEST_F(StoreTest, FilesAreThereOnceLookedAt) {
  store().put(entry_of(1), compiler_a);
  store().put(entry_of(2), compiler_a);
  DiskStore one = store();
  auto entries = one.files();
  ASSERT_EQ(entries.size(), 2u);
  EXPECT_FALSE(entries[0].is_there);
  EXPECT_EQ(entries[0].key, "");
  ::unlink(entries[1].path.c_str());
  one.read_headers(entries);
  EXPECT_TRUE(entries[0].is_there);
  EXPECT_EQ(Key{entries[0].key}.digest(), entries[0].digest);
  EXPECT_FALSE(entries[1].is_there);
}

// What cannot be opened still has a size and an age, and those of 1970 would be wrong.
TEST_F(StoreTest, AnEntryThatCannotBeOpenedIsListedWithItsSizeAndAge) {
  store().put(entry_of(1), compiler_a);
  const ListedEntry sound = store().list().at(0);
  for (const int error : {EACCES, ELOOP}) {
    test::FaultyFileSystem faulty;
    faulty.fail_verb("open", error);
    const ListedEntry listed = store(faulty).list().at(0);
    EXPECT_NE(listed.problem, "");
    EXPECT_EQ(listed.file_bytes, sound.file_bytes);
    EXPECT_EQ(listed.modified_s, sound.modified_s);
  }
}

TEST_F(StoreTest, AFolderThatCannotBeLookedAtIsNotSaidToBeAbsent) {
  test::FaultyFileSystem faulty;
  faulty.fail_verb("stat", EACCES);
  faulty.fail_verb("access", EACCES);
  for (const LayerState& state : DiskStore({folder_, {temp_ / "below"}}, faulty).layers()) {
    EXPECT_EQ(state.problem, state.layer.folder + ": not readable: Permission denied");
  }
}

TEST_F(StoreTest, AWholeReadJudgesAsAGetDoes) {
  store().put(entry_of(1), compiler_a);
  DiskStore one = store();
  ListedEntry listed = one.list().at(0);
  EXPECT_EQ(one.read(listed).status, ReadStatus::ok);
  EXPECT_EQ(one.read(listed).entry, entry_of(1));

  listed.digest = key_of(2).digest();
  EXPECT_EQ(one.read(listed).problem, "holds another key than its name says");
  ASSERT_EQ(::chmod(listed.path.c_str(), 0666), 0);
  EXPECT_EQ(one.read(listed).status, ReadStatus::refused);
  listed.layer.read_write = false;
  listed.digest = key_of(1).digest();
  EXPECT_EQ(one.read(listed).status, ReadStatus::ok) << "trusted as it is";
  ::unlink(listed.path.c_str());
  EXPECT_EQ(one.read(listed).status, ReadStatus::absent);
}

TEST_F(StoreTest, AWholeReadIsNoUse) {
  store().put(entry_of(1), compiler_a);
  set_age(path_of(1), 100000);
  DiskStore one = store();
  one.read(one.list().at(0));
  EXPECT_LT(one.list().at(0).modified_s, std::time(nullptr) - 90000);
}

TEST_F(StoreTest, RemoveTakesOneEntry) {
  store().put(entry_of(1), compiler_a);
  store().put(entry_of(1), compiler_b);
  DiskStore one = store();
  const ListedEntry listed = one.list().at(0);
  EXPECT_EQ(one.remove(listed), "");
  EXPECT_EQ(names_in(folder_).size(), 1u);
  EXPECT_EQ(one.remove(listed), "") << "gone already";
  std::filesystem::remove_all(folder_);
  EXPECT_EQ(one.remove(listed), "") << "with its folder";
}

TEST_F(StoreTest, RemoveTellsWhyNot) {
  store().put(entry_of(1), compiler_a);
  test::FaultyFileSystem files;
  DiskStore one = store(files);
  ListedEntry listed = one.list().at(0);
  files.fail_verb("unlink", EINTR, 2);
  files.fail_verb("stat", EIO, 1);
  EXPECT_NE(one.remove(listed).find("Input/output error"), std::string::npos);
  EXPECT_EQ(names_in(folder_).size(), 1u);
  files.fail_verb("unlink", EROFS, 1);
  EXPECT_NE(one.remove(listed).find("Read-only file system"), std::string::npos);
  listed.layer.read_write = false;
  EXPECT_NE(one.remove(listed).find("read-only layer"), std::string::npos);
  listed.layer.read_write = true;
  files.fail_verb("unlink", EINTR, 2);
  EXPECT_EQ(one.remove(listed), "");
  EXPECT_TRUE(names_in(folder_).empty());
}

TEST_F(StoreTest, ClearTakesAlsoWhatIsUsedMeanwhile) {
  for (int i = 0; i < 3; ++i) {
    store().put(entry_of(i), compiler_a);
    set_age(path_of(i), 7200);
  }
  test::write_file(folder_ + "/.usage", "counts");
  test::FaultyFileSystem files;
  files.set_observer([&](std::string_view verb) {
    if (verb == "unlink" && std::filesystem::exists(path_of(2))) set_age(path_of(2), 0);
  });
  const Swept swept = store(files).clear();
  EXPECT_EQ(swept.num_removed, 3u);
  EXPECT_EQ(swept.problem, "");
  EXPECT_TRUE(names_in(folder_).empty());
}

TEST_F(StoreTest, ClearTellsWhatStays) {
  store().put(entry_of(1), compiler_a);
  test::FaultyFileSystem files;
  files.set_read_only();
  const Swept swept = store(files).clear();
  EXPECT_NE(swept.problem.find("Read-only file system"), std::string::npos);
  EXPECT_EQ(swept.num_entries, 1u);
  EXPECT_EQ(swept.num_removed, 0u);
  EXPECT_EQ(DiskStore({}).clear().problem, "") << "no folder to clear";
}

TEST_F(StoreTest, NoFaultEndsALookOrARemoval) {
  for (int call = 1; call < 40; ++call) {
    for (const int error : {EIO, ENOENT, EACCES, ESTALE, EINTR}) {
      store().put(entry_of(1), compiler_a);
      store().put(entry_of(2), compiler_a);
      test::FaultyFileSystem files;
      files.fail_from(call, error);
      DiskStore one = store(files);
      for (const ListedEntry& entry : one.list()) {
        one.read(entry);
        one.remove(entry);
      }
      one.clear();
      EXPECT_EQ(one.get(key_of(3), compiler_a), std::nullopt);
    }
  }
}

// A sweep that would remove tells the same as one that does, and removes nothing.
TEST_F(StoreTest, ADryRunTellsWhatWouldGo) {
  const std::string left =
      folder_ + '/' + temp_file_name(entry_file_name(key_of(9).digest(), compiler_a));
  for (int i = 0; i < 3; ++i) {
    store().put(entry_of(i), compiler_a);
    set_age(path_of(i), 3600 * (3 - i));
  }
  test::write_file(left, "half");
  set_age(left, 4000);
  SweepLimits limits{.most_idle_s = 5400};
  limits.dry_run = true;
  const Swept dry = store().prune(limits);
  EXPECT_EQ(names_in(folder_).size(), 4u);
  limits.dry_run = false;
  const Swept real = store().prune(limits);
  EXPECT_EQ(names_in(folder_).size(), 1u);
  for (const Swept& swept : {dry, real}) {
    EXPECT_EQ(swept.removed, (Names{path_of(0), path_of(1)}));
    EXPECT_EQ(swept.leftovers, (Names{left}));
    EXPECT_EQ(swept.num_entries, 1u);
    EXPECT_EQ(swept.num_removed, 2u);
    EXPECT_EQ(swept.removed_bytes, real.removed_bytes);
  }
}

// As where the folder is removed in between: no trouble of a layer.
TEST_F(StoreTest, AFolderThatVanishesIsNoTrouble) {
  store().put(entry_of(1), compiler_a);
  test::FaultyFileSystem files;
  files.set_observer([&](std::string_view verb) {
    if (verb == "access") std::filesystem::remove_all(folder_);
  });
  EXPECT_EQ(store(files).layers().at(0).problem, "");
}

}  // namespace
}  // namespace rlk::cache
