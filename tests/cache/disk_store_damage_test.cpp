// SPDX-License-Identifier: Apache-2.0
// What may lie where an entry should: damage, strangers, traps. Always a logged miss that a put
// mends.
#include "cache/disk_store.hpp"
#include "tests/cache/store_fixture.hpp"

#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <functional>
#include <random>

namespace rlk::cache {
namespace {

class StoreDamageTest : public StoreTest {
 protected:
  StoreDamageTest() { store().put(entry_of(1), compiler_a); }

  // The file at entry 1's place is a miss, logged once with `words`; a put heals it.
  void expect_healed(const std::string& words) {
    log_.clear();
    DiskStore one = store();
    EXPECT_FALSE(one.get(key_of(1), compiler_a));
    EXPECT_FALSE(one.get(key_of(1), compiler_a));
    EXPECT_FALSE(one.get(key_of(1), ""));
    EXPECT_EQ(log_.num_lines(), 1) << log_.text();
    EXPECT_TRUE(log_.contains(words)) << log_.text();
    EXPECT_TRUE(log_.contains(path_of(1))) << log_.text();
    EXPECT_EQ(one.list().at(0).path, path_of(1));
    one.put(entry_of(1), compiler_a);
    EXPECT_EQ(one.get(key_of(1), compiler_a), entry_of(1));
    EXPECT_EQ(log_.num_lines(), 1) << log_.text();
    EXPECT_EQ(names_in(folder_).size(), 1u);
  }
};

TEST_F(StoreDamageTest, TruncatedAtAnyLength) {
  const std::string good = test::read_file(path_of(1));
  for (std::size_t size = 0; size < good.size(); size += 1 + size / 16) {
    test::write_file(path_of(1), good.substr(0, size));
    expect_healed("expected");
  }
}

TEST_F(StoreDamageTest, BitsFlipped) {
  const std::string good = test::read_file(path_of(1));
  std::mt19937 random(3);
  for (int i = 0; i < 200; ++i) {
    std::string bytes = good;
    char& byte = bytes[random() % bytes.size()];
    byte = static_cast<char>(byte ^ (1 << (random() % 8)));
    test::write_file(path_of(1), bytes);
    expect_healed("damaged entry not used");
  }
}

TEST_F(StoreDamageTest, BytesAppended) {
  test::write_file(path_of(1), test::read_file(path_of(1)) + "more");
  expect_healed("expected");
}

TEST_F(StoreDamageTest, Foreign) {
  test::write_file(path_of(1), std::string(5000, '#'));
  expect_healed("wrong magic");
}

TEST_F(StoreDamageTest, AnotherVersion) {
  std::string bytes = test::read_file(path_of(1));
  bytes[8] = 2;
  test::write_file(path_of(1), bytes);
  expect_healed("expected format version 1, got 2");
}

TEST_F(StoreDamageTest, AnotherKeyUnderThisName) {
  test::write_file(path_of(1), encode_entry(entry_of(2)));
  expect_healed("another key");
}

// A hole of a terabyte is compared with the head's sizes before memory is asked for.
TEST_F(StoreDamageTest, HugeFile) {
  std::filesystem::resize_file(path_of(1), std::uintmax_t{1} << 40);
  expect_healed("expected");
}

TEST_F(StoreDamageTest, Fifo) {
  ASSERT_EQ(::unlink(path_of(1).c_str()), 0);
  ASSERT_EQ(::mkfifo(path_of(1).c_str(), 0600), 0);
  expect_healed("regular file");
}

TEST_F(StoreDamageTest, Socket) {
  ASSERT_EQ(::unlink(path_of(1).c_str()), 0);
  ASSERT_EQ(::mknod(path_of(1).c_str(), S_IFSOCK | 0600, 0), 0);
  expect_healed("regular file");
}

TEST_F(StoreDamageTest, Symlink) {
  std::filesystem::rename(path_of(1), temp_ / "target");
  std::filesystem::create_symlink(temp_ / "target", path_of(1));
  expect_healed("regular file");
  EXPECT_TRUE(std::filesystem::exists(temp_ / "target"));
}

TEST_F(StoreDamageTest, DanglingSymlink) {
  ASSERT_EQ(::unlink(path_of(1).c_str()), 0);
  std::filesystem::create_symlink(temp_ / "nowhere", path_of(1));
  expect_healed("regular file");
}

TEST_F(StoreDamageTest, WritableByOthers) {
  ASSERT_EQ(::chmod(path_of(1).c_str(), 0666), 0);
  expect_healed("chmod go-w");
}

TEST_F(StoreDamageTest, OwnedByAnother) {
  if (::geteuid() != 0) GTEST_SKIP() << "giving a file away needs root";
  ASSERT_EQ(::chown(path_of(1).c_str(), 12345, 12345), 0);
  expect_healed("expected owner");
}

// No rename replaces a folder: said once each, and the call goes on.
TEST_F(StoreDamageTest, Folder) {
  ASSERT_EQ(::unlink(path_of(1).c_str()), 0);
  ASSERT_EQ(::mkdir(path_of(1).c_str(), 0700), 0);
  log_.clear();
  DiskStore one = store();
  for (int i = 0; i < 2; ++i) {
    EXPECT_FALSE(one.get(key_of(1), compiler_a));
    one.put(entry_of(1), compiler_a);
  }
  EXPECT_TRUE(log_.contains("regular file")) << log_.text();
  EXPECT_TRUE(log_.contains("entry not stored")) << log_.text();
  EXPECT_EQ(log_.num_lines(), 2) << log_.text();
  EXPECT_EQ(names_in(folder_).size(), 1u);  // no temp file stays
}

TEST_F(StoreDamageTest, AFolderThatOthersMayWriteIsRefusedUntilMended) {
  ASSERT_EQ(::chmod(folder_.c_str(), 0777), 0);
  DiskStore one = store();
  EXPECT_FALSE(one.get(key_of(1), compiler_a));
  one.put(entry_of(2), compiler_a);
  EXPECT_FALSE(one.get(key_of(2), compiler_a));
  EXPECT_EQ(names_in(folder_).size(), 1u);
  EXPECT_EQ(log_.num_lines(), 1) << log_.text();
  EXPECT_TRUE(log_.contains("chmod go-w '" + folder_ + "'")) << log_.text();
  ASSERT_EQ(::chmod(folder_.c_str(), 0755), 0);
  EXPECT_TRUE(one.get(key_of(1), compiler_a));
}

TEST_F(StoreDamageTest, AFolderOfAnotherIsRefused) {
  if (::geteuid() != 0) GTEST_SKIP() << "giving a folder away needs root";
  ASSERT_EQ(::chown(folder_.c_str(), 12345, 12345), 0);
  DiskStore one = store();
  EXPECT_FALSE(one.get(key_of(1), compiler_a));
  one.put(entry_of(2), compiler_a);
  EXPECT_EQ(names_in(folder_).size(), 1u);
  EXPECT_TRUE(log_.contains("expected owner")) << log_.text();
}

TEST_F(StoreDamageTest, AFileInTheFoldersPlaceIsRefused) {
  std::filesystem::remove_all(folder_);
  test::write_file(folder_, "");
  DiskStore one = store();
  EXPECT_FALSE(one.get(key_of(1), compiler_a));
  one.put(entry_of(1), compiler_a);
  EXPECT_FALSE(one.get(key_of(1), compiler_a));
  EXPECT_EQ(log_.num_lines(), 1) << log_.text();
}

// Layers below are read when the upper one is damaged.
TEST_F(StoreDamageTest, ALowerLayerServes) {
  const std::string below = layer_with("below", entry_of(1, "below"), compiler_b);
  test::write_file(path_of(1), "damage");
  EXPECT_EQ(DiskStore({folder_, {below}}).get(key_of(1), compiler_a), entry_of(1, "below"));
}

}  // namespace
}  // namespace rlk::cache
