// SPDX-License-Identifier: Apache-2.0
#include "cache/default_folder.hpp"

#include "tests/support/faulty_file_system.hpp"
#include "tests/support/temp_dir.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>

namespace rlk::cache {
namespace {

class DefaultFolderTest : public testing::Test {
 protected:
  DefaultFolderTest() {
    std::filesystem::create_directory(home_);
    std::filesystem::create_directory(tmp_);
    environment_.tmpdir = tmp_;
  }

  std::string in_temp() const { return fmt::format("{}/rlk-{}", tmp_, ::geteuid()); }

  void expect_another_in_temp() const {
    const auto path = default_folder(environment_).path;
    ASSERT_TRUE(path);
    EXPECT_NE(*path, in_temp());
    EXPECT_TRUE(path->starts_with(in_temp())) << *path;
    EXPECT_NE(*path, *default_folder(environment_).path);  // nobody can guess the next
  }

  test::TempDir temp_;
  std::string home_ = temp_ / "home";
  std::string tmp_ = temp_ / "tmp";
  FolderEnvironment environment_;
};

TEST_F(DefaultFolderTest, TheFirstVariableThatIsSetDecides) {
  environment_.home = home_;
  EXPECT_EQ(default_folder(environment_).path, home_ + "/.cache/rlk");
  environment_.xdg_cache_home = temp_ / "xdg";
  EXPECT_EQ(default_folder(environment_).path, temp_ / "xdg/rlk");
  environment_.rlk_cache_dir = "/given folder/\xc3\xa4'\"";
  EXPECT_EQ(default_folder(environment_).path, "/given folder/\xc3\xa4'\"");
  EXPECT_EQ(default_folder(environment_).note, "");
}

TEST_F(DefaultFolderTest, NothingIsMade) {
  environment_.home = home_;
  default_folder(environment_);
  environment_.home.reset();
  default_folder(environment_);
  EXPECT_TRUE(std::filesystem::is_empty(home_));
  EXPECT_TRUE(std::filesystem::is_empty(tmp_));
}

TEST_F(DefaultFolderTest, EmptyAndRelativeVariablesCountAsUnset) {
  environment_.rlk_cache_dir = "";
  environment_.xdg_cache_home = "relative";
  environment_.home = home_;
  EXPECT_EQ(default_folder(environment_).path, home_ + "/.cache/rlk");
}

TEST_F(DefaultFolderTest, ARelativeVariableIsTold) {
  environment_.xdg_cache_home = "relative";
  environment_.home = home_;
  EXPECT_EQ(default_folder(environment_).note,
            "XDG_CACHE_HOME: expected an absolute path, got \"relative\", which counts as unset");
  environment_.xdg_cache_home.reset();
  environment_.home = "a";
  environment_.tmpdir = "b";
  const std::string note = default_folder(environment_).note;
  EXPECT_TRUE(
      note.starts_with("HOME: expected an absolute path, got \"a\", which counts as unset; "
                       "TMPDIR: expected an absolute path, got \"b\", which counts as "
                       "unset; no home folder; "))
      << note;
}

// A later chdir must not move the cache.
TEST_F(DefaultFolderTest, AGivenFolderBecomesAbsolute) {
  environment_.rlk_cache_dir = "here/../there";
  EXPECT_EQ(default_folder(environment_).path, std::filesystem::current_path().string() + "/there");
}

TEST_F(DefaultFolderTest, WithoutAHomeThePrivateTempFolderIsTakenAndSaid) {
  const auto folder = default_folder(environment_);
  EXPECT_EQ(folder.path, in_temp());
  EXPECT_NE(folder.note.find(in_temp()), std::string::npos) << folder.note;
  EXPECT_NE(folder.note.find("RLK_CACHE_DIR"), std::string::npos) << folder.note;
}

TEST_F(DefaultFolderTest, AHomeThatDoesNotExistIsNotMade) {
  environment_.home = temp_ / "nonexistent";
  EXPECT_EQ(default_folder(environment_).path, in_temp());
}

TEST_F(DefaultFolderTest, AHomeThatCannotBeWrittenIsNotTaken) {
  environment_.home = home_;
  test::FaultyFileSystem faulty;
  faulty.fail_verb("access", EACCES, 1);  // the home's; the temp folder's is fine
  const auto folder = default_folder(environment_, faulty);
  EXPECT_EQ(folder.path, in_temp());
  EXPECT_NE(folder.note.find(home_), std::string::npos) << folder.note;
}

// It may be full of entries, as in an image with a read-only home.
TEST_F(DefaultFolderTest, AReadOnlyFolderThatExistsIsTaken) {
  environment_.home = home_;
  std::filesystem::create_directories(home_ + "/.cache/rlk");
  test::FaultyFileSystem faulty;
  faulty.set_read_only();
  EXPECT_EQ(default_folder(environment_, faulty).path, home_ + "/.cache/rlk");
}

TEST_F(DefaultFolderTest, WithNothingWritableThereIsNoFolder) {
  environment_.home = home_;
  test::FaultyFileSystem faulty;
  faulty.set_read_only();
  const auto folder = default_folder(environment_, faulty);
  EXPECT_FALSE(folder.path);
  const std::string rest = fmt::format(
      "; nor is {} a folder to write to; compiled kernels are not stored; set RLK_CACHE_DIR to a "
      "folder that lasts",
      tmp_);
  EXPECT_EQ(folder.note, home_ + "/.cache/rlk cannot be written" + rest);
  environment_.home.reset();
  EXPECT_EQ(default_folder(environment_, faulty).note, "no home folder" + rest);
}

TEST_F(DefaultFolderTest, AnOwnTempFolderIsTakenAgain) {
  ASSERT_EQ(::mkdir(in_temp().c_str(), 0700), 0);
  EXPECT_EQ(default_folder(environment_).path, in_temp());
}

TEST_F(DefaultFolderTest, APlantedTempFolderIsNotTaken) {
  ASSERT_EQ(::mkdir(in_temp().c_str(), 0700), 0);
  ASSERT_EQ(::chmod(in_temp().c_str(), 0777), 0);
  expect_another_in_temp();
  ASSERT_EQ(::rmdir(in_temp().c_str()), 0);
  test::write_file(in_temp(), "");
  expect_another_in_temp();
}

TEST_F(DefaultFolderTest, ATempFolderOfAnotherOwnerIsNotTaken) {
  if (::geteuid() != 0) GTEST_SKIP() << "making a folder of another owner needs root";
  ASSERT_EQ(::mkdir(in_temp().c_str(), 0700), 0);
  ASSERT_EQ(::chown(in_temp().c_str(), 12345, 12345), 0);
  expect_another_in_temp();
}

TEST_F(DefaultFolderTest, TheEnvironmentIsReadThroughTheLookup) {
  const auto environment = folder_environment([](const char* name) -> std::optional<std::string> {
    return std::string("value of ") + name;
  });
  EXPECT_EQ(environment.rlk_cache_dir, "value of RLK_CACHE_DIR");
  EXPECT_EQ(environment.xdg_cache_home, "value of XDG_CACHE_HOME");
  EXPECT_EQ(environment.home, "value of HOME");
  EXPECT_EQ(environment.tmpdir, "value of TMPDIR");
}

}  // namespace
}  // namespace rlk::cache
