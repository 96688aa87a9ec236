// SPDX-License-Identifier: Apache-2.0
#include "cache/files/folder.hpp"

#include "tests/support/faulty_file_system.hpp"
#include "tests/support/temp_dir.hpp"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

namespace rlk::cache {
namespace {

FileSystem& files = posix_file_system();

mode_t mode_of(const std::string& path) { return files.stat(path, Links::follow).value.mode; }

class UmaskTest : public testing::TestWithParam<mode_t> {
 protected:
  void SetUp() override { before_ = ::umask(GetParam()); }
  void TearDown() override { ::umask(before_); }

 private:
  mode_t before_ = 0;
};

TEST_P(UmaskTest, FoldersAreMadePrivateWithTheirParents) {
  test::TempDir temp;
  ASSERT_EQ(::chmod(temp.path().c_str(), 0700), 0);  // mkdtemp heeds the umask
  ASSERT_EQ(make_folder(files, temp / "a/b/c", Sharing::owner), 0);
  for (const char* made : {"a", "a/b", "a/b/c"}) EXPECT_EQ(mode_of(temp / made), 0700u) << made;
  ASSERT_EQ(make_folder(files, temp / "g", Sharing::group), 0);
  EXPECT_EQ(mode_of(temp / "g"), 02770u);
}

INSTANTIATE_TEST_SUITE_P(Folder, UmaskTest, testing::Values(0, 022, 077, 0777));

TEST(Folder, OneThatIsThereIsLeftAsItIs) {
  test::TempDir temp;
  ASSERT_EQ(::mkdir((temp / "a").c_str(), 0755), 0);
  ASSERT_EQ(::chmod((temp / "a").c_str(), 0755), 0);
  EXPECT_EQ(make_folder(files, temp / "a", Sharing::owner), 0);
  EXPECT_EQ(mode_of(temp / "a"), 0755u);
}

TEST(Folder, LosingTheRaceToMakeItIsNoError) {
  test::TempDir temp;
  test::FaultyFileSystem faulty;
  faulty.set_observer([&](std::string_view verb) {
    if (verb == "mkdir") ::mkdir((temp / "a").c_str(), 0700);
  });
  EXPECT_EQ(make_folder(faulty, temp / "a", Sharing::owner), 0);
}

TEST(Folder, ErrorsComeBack) {
  test::TempDir temp;
  test::write_file(temp / "file", "");
  EXPECT_EQ(make_folder(files, temp / "file/a", Sharing::owner), ENOTDIR);
  test::FaultyFileSystem faulty;
  faulty.set_read_only();
  EXPECT_EQ(make_folder(faulty, temp / "a", Sharing::owner), EROFS);
  // A mount without modes; that the rights are as they must be is seen by check_folder.
  test::FaultyFileSystem modeless;
  modeless.fail_verb("chmod", EPERM);
  EXPECT_EQ(make_folder(modeless, temp / "b", Sharing::owner), 0);
  // One that is there asks nothing of a read-only disk.
  EXPECT_EQ(make_folder(faulty, temp.path(), Sharing::owner), 0);
}

TEST(Folder, CheckTellsAbsentFromRefused) {
  test::TempDir temp;
  EXPECT_EQ(check_folder(files, temp / "none", Sharing::owner).error, ENOENT);
  EXPECT_EQ(check_folder(files, temp.path(), Sharing::owner).problem, "");
  test::write_file(temp / "file", "");
  EXPECT_NE(check_folder(files, temp / "file", Sharing::owner).problem, "");
  ASSERT_EQ(::chmod(temp.path().c_str(), 0777), 0);
  EXPECT_NE(check_folder(files, temp.path(), Sharing::owner).problem, "");
}

TEST(Folder, LinksAreFollowedIfTheirOwnerIsTrusted) {
  test::TempDir temp;
  ASSERT_EQ(make_folder(files, temp / "real", Sharing::owner), 0);
  ASSERT_EQ(::symlink((temp / "real").c_str(), (temp / "link").c_str()), 0);
  EXPECT_EQ(check_folder(files, temp / "link", Sharing::owner).problem, "");
}

TEST(Folder, LinksOfAnotherOwnerAreRefused) {
  if (::geteuid() != 0) GTEST_SKIP() << "making a link of another owner needs root";
  test::TempDir temp;
  ASSERT_EQ(make_folder(files, temp / "real", Sharing::owner), 0);
  ASSERT_EQ(::symlink((temp / "real").c_str(), (temp / "link").c_str()), 0);
  ASSERT_EQ(::lchown((temp / "link").c_str(), 12345, 12345), 0);
  EXPECT_NE(check_folder(files, temp / "link", Sharing::owner).problem, "");
}

// No setting opens what its modes close.
TEST(Folder, TheSettingIsAdvisedOnlyWhereTheFolderIsOpenToUs) {
  test::TempDir temp;
  ASSERT_EQ(::chmod(temp.path().c_str(), 0777), 0);
  test::FaultyFileSystem faulty;
  const auto said = [&] { return check_folder(faulty, temp.path(), Sharing::owner).problem; };
  EXPECT_NE(said().find("RLK_CACHE_SHARED=all"), std::string::npos);
  faulty.fail_verb("access", EACCES);
  EXPECT_EQ(said().find("RLK_CACHE_SHARED="), std::string::npos) << said();
  EXPECT_NE(said().find("closed to us"), std::string::npos) << said();
}

TEST(Folder, CouldWriteLooksAtTheNearestThatExists) {
  test::TempDir temp;
  EXPECT_TRUE(could_write(files, temp.path()));
  EXPECT_TRUE(could_write(files, temp / "a/b/c"));
  EXPECT_FALSE(files.stat(temp / "a", Links::follow));
  test::write_file(temp / "file", "");
  EXPECT_FALSE(could_write(files, temp / "file"));
  EXPECT_FALSE(could_write(files, temp / "file/a"));
  test::FaultyFileSystem faulty;
  faulty.set_read_only();
  EXPECT_FALSE(could_write(faulty, temp / "a/b"));
}

}  // namespace
}  // namespace rlk::cache
