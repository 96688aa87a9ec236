// SPDX-License-Identifier: Apache-2.0
// Where locks lie: in the cache folder, or, if that is on a network file system, in a private
// folder of this machine.
#include "cache/files/lock_place.hpp"

#include "tests/cache/store_fixture.hpp"
#include "tests/support/faulty_file_system.hpp"

#include <unistd.h>

namespace rlk::cache {
namespace {

class LockPlaceTest : public testing::Test {
 protected:
  LockPlaceTest() {
    for (const auto& folder : {cache_, first_, second_}) std::filesystem::create_directory(folder);
  }

  LockPlace place() { return lock_place(files_, cache_, std::vector{first_, second_}); }

  // With the cache on the network.
  LockPlace far_place() {
    files_.set_network_folder(cache_);
    return place();
  }

  test::TempDir temp_;
  std::string cache_ = temp_ / "cache";
  std::string first_ = temp_ / "first";
  std::string second_ = temp_ / "second";
  std::string mine_ = first_ + "/rlk-" + std::to_string(::geteuid());
  test::FaultyFileSystem files_;
};

TEST_F(LockPlaceTest, InTheFolderWhereThatIsLocal) {
  EXPECT_EQ(place().path, cache_ + "/.lock");
  EXPECT_TRUE(names_in(first_).empty());
}

TEST_F(LockPlaceTest, OnThisMachineWhereTheFolderIsNot) {
  const LockPlace found = far_place();
  EXPECT_EQ(found.problem, "");
  EXPECT_TRUE(found.path.starts_with(mine_ + "/locks/")) << found.path;
  EXPECT_EQ(mode_of(mine_), 0700u);
  EXPECT_EQ(mode_of(mine_ + "/locks"), 0700u);
  EXPECT_TRUE(names_in(cache_).empty());
  EXPECT_EQ(far_place().path, found.path) << "for all processes the same";
  cache_ += "2";
  EXPECT_NE(far_place().path, found.path) << "one for each cache";
}

TEST_F(LockPlaceTest, AFolderThatCannotBeAskedCountsAsFar) {
  files_.fail_verb("is_node_local", EIO, 1);
  EXPECT_TRUE(place().path.starts_with(mine_));
}

TEST_F(LockPlaceTest, TheNextFolderWhereTheFirstIsFarToo) {
  files_.set_network_folder(temp_.path());
  EXPECT_EQ(place().path, "");
  EXPECT_NE(place().problem, "");
  std::filesystem::remove(first_);
  EXPECT_TRUE(far_place().path.starts_with(second_)) << "absent";
}

// Anybody can make that name in /tmp.
TEST_F(LockPlaceTest, APlantedFolderIsNotUsed) {
  std::filesystem::create_directory(mine_);
  ASSERT_EQ(::chmod(mine_.c_str(), 0777), 0);
  EXPECT_TRUE(far_place().path.starts_with(second_));
  std::filesystem::remove(mine_);
  test::write_file(mine_, "");
  EXPECT_TRUE(far_place().path.starts_with(second_));
  if (::geteuid() != 0) return;  // giving a folder away needs root
  std::filesystem::remove(mine_);
  std::filesystem::create_directory(mine_);
  ASSERT_EQ(::chown(mine_.c_str(), 12345, 12345), 0);
  EXPECT_TRUE(far_place().path.starts_with(second_));
  std::filesystem::remove(mine_);
  std::filesystem::create_symlink(temp_ / "elsewhere", mine_);
  std::filesystem::create_directory(temp_ / "elsewhere");
  ASSERT_EQ(::lchown(mine_.c_str(), 12345, 12345), 0);
  EXPECT_TRUE(far_place().path.starts_with(second_));
}

TEST_F(LockPlaceTest, WithoutARightfulFolderItSaysWhy) {
  for (const auto& parent : {first_, second_}) {
    test::write_file(parent + "/rlk-" + std::to_string(::geteuid()), "");
  }
  EXPECT_EQ(far_place().path, "");
  EXPECT_NE(far_place().problem.find("expected a folder"), std::string::npos);
}

// The real answer where there is one to be had for sure.
TEST(NodeLocal, MemoryIsAndTheKernelsOwnTreeCountsNot) {
  if (std::filesystem::exists("/dev/shm")) {
    EXPECT_TRUE(posix_file_system().is_node_local("/dev/shm").value);
  }
  EXPECT_FALSE(posix_file_system().is_node_local("/proc").value);
  EXPECT_EQ(posix_file_system().is_node_local("/absent").error, ENOENT);
}

}  // namespace
}  // namespace rlk::cache
