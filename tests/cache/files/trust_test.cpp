// SPDX-License-Identifier: Apache-2.0
#include "cache/files/trust.hpp"

#include <gtest/gtest.h>

namespace rlk::cache {
namespace {

constexpr uid_t me = 1000;
constexpr uid_t other = 1001;
constexpr gid_t my_group = 100;
constexpr gid_t strange_group = 200;
const Identity identity{me, {my_group}};

std::string problem(uid_t owner, gid_t group, mode_t mode, Sharing sharing = Sharing::owner) {
  FileStat stat;
  stat.owner = owner;
  stat.group = group;
  stat.mode = mode;
  return trust_problem("/cache/x", stat, sharing, identity);
}

TEST(Trust, OwnFilesThatOnlyWeMayWriteAreFine) {
  EXPECT_EQ(problem(me, my_group, 0600), "");
  EXPECT_EQ(problem(me, my_group, 0755), "");
  EXPECT_EQ(problem(0, 0, 0644), "");  // root could do anything anyway
}

TEST(Trust, ForeignOwnersAreRefusedWithAWayToMend) {
  const std::string said = problem(other, my_group, 0600);
  EXPECT_NE(said.find("expected owner 1000 (or root), got 1001"), std::string::npos) << said;
  EXPECT_NE(said.find("RLK_CACHE_DIR"), std::string::npos) << said;
}

TEST(Trust, FilesThatOthersMayWriteAreRefusedWithAWayToMend) {
  for (const mode_t mode : {0660, 0606, 0777, 01777}) {
    const std::string said = problem(me, my_group, mode);
    EXPECT_NE(said.find("chmod go-w '/cache/x'"), std::string::npos) << said;
  }
  EXPECT_NE(problem(0, 0, 0666), "");
}

TEST(Trust, SharingAllowsAGroupOfOursAndNoMore) {
  EXPECT_EQ(problem(other, my_group, 0660, Sharing::group), "");
  EXPECT_EQ(problem(me, my_group, 02770, Sharing::group), "");
  EXPECT_NE(problem(other, strange_group, 0600, Sharing::group), "");
  EXPECT_NE(problem(me, strange_group, 0660, Sharing::group), "");
  EXPECT_NE(problem(other, my_group, 0662, Sharing::group), "");
}

}  // namespace
}  // namespace rlk::cache
