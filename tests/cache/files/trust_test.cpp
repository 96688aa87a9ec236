// SPDX-License-Identifier: Apache-2.0
#include "cache/files/trust.hpp"

#include <gtest/gtest.h>

#include <tuple>

namespace rlk::cache {
namespace {

constexpr uid_t k_me = 1000;
constexpr uid_t k_other = 1001;
constexpr gid_t k_my_group = 100;
constexpr gid_t k_strange_group = 200;
const Identity k_identity{k_me, {k_my_group}};

std::string problem(uid_t owner, gid_t group, mode_t mode, Sharing sharing = Sharing::owner) {
  FileStat stat;
  stat.owner = owner;
  stat.group = group;
  stat.mode = mode;
  return trust_problem("/cache/x", stat, sharing, k_identity);
}

TEST(Trust, OwnFilesThatOnlyWeMayWriteAreFine) {
  EXPECT_EQ(problem(k_me, k_my_group, 0600), "");
  EXPECT_EQ(problem(k_me, k_my_group, 0755), "");
  EXPECT_EQ(problem(0, 0, 0644), "");  // root could do anything anyway
}

TEST(Trust, ForeignOwnersAreRefusedWithAWayToMend) {
  const std::string said = problem(k_other, k_my_group, 0600);
  EXPECT_EQ(
      said,
      "/cache/x: expected owner 1000 (or root), got 1001; mend: RLK_CACHE_SHARED=group if all "
      "who may write it are trusted (as where fsGroup or the mount sets owners and rights), "
      "else another RLK_CACHE_DIR");
  // As NFS shows what root has made.
  EXPECT_NE(problem(65534, 65534, 0700).find("RLK_CACHE_SHARED=all"), std::string::npos);
}

TEST(Trust, FilesThatOthersMayWriteAreRefusedWithAWayToMend) {
  for (const mode_t mode : {0660, 0606, 0777, 01777}) {
    const std::string said = problem(k_me, k_my_group, mode);
    EXPECT_NE(said.find("chmod go-w '/cache/x'"), std::string::npos) << said;
  }
  EXPECT_NE(problem(0, 0, 0666), "");
}

// Whatever the message names makes the file one that may be used.
TEST(Trust, TheSettingOfTheMessageIsTheLeastThatHelps) {
  EXPECT_NE(problem(k_me, k_my_group, 0660).find("RLK_CACHE_SHARED=group"), std::string::npos);
  for (const auto& [owner, group, mode] : {std::tuple{k_me, k_my_group, 0777},
                                           {k_me, k_strange_group, 0660},
                                           {k_other, k_strange_group, 0600}}) {
    EXPECT_NE(problem(owner, group, mode, Sharing::group).find("RLK_CACHE_SHARED=all"),
              std::string::npos);
    EXPECT_EQ(problem(owner, group, mode, Sharing::all), "");
  }
}

// Who has set a setgid bit sets it again, and what is root's only root can change.
TEST(Trust, ChmodIsAdvisedOnlyWhereItCanHelp) {
  for (const std::string& said : {problem(k_me, k_my_group, 02770), problem(0, k_my_group, 0770),
                                  problem(k_other, k_my_group, 0777)}) {
    EXPECT_EQ(said.find("chmod"), std::string::npos) << said;
    EXPECT_NE(said.find("RLK_CACHE_SHARED="), std::string::npos) << said;
  }
}

TEST(Trust, SharingAllowsAGroupOfOursAndNoMore) {
  EXPECT_EQ(problem(k_other, k_my_group, 0660, Sharing::group), "");
  EXPECT_EQ(problem(k_me, k_my_group, 02770, Sharing::group), "");
  EXPECT_NE(problem(k_other, k_strange_group, 0600, Sharing::group), "");
  EXPECT_NE(problem(k_me, k_strange_group, 0660, Sharing::group), "");
  EXPECT_NE(problem(k_other, k_my_group, 0662, Sharing::group), "");
  EXPECT_NE(problem(k_me, k_my_group, 0662, Sharing::group).find("chmod o-w"), std::string::npos);
}

// Root's pod on a volume of fsGroup, whether or not it was given that group.
TEST(Trust, RootSharesWithAnyGroupWhatIsItsOwn) {
  FileStat stat;
  stat.mode = 02770;
  stat.group = k_strange_group;
  const Identity root{0, {0}};
  EXPECT_NE(trust_problem("/cache", stat, Sharing::owner, root), "");
  EXPECT_EQ(trust_problem("/cache", stat, Sharing::group, root), "");
  stat.owner = k_other;
  EXPECT_NE(trust_problem("/cache", stat, Sharing::group, root), "");
}

// A user's own group, by the custom of Linux, which fsGroup: 1000 beside runAsUser: 1000 is too.
TEST(Trust, AGroupOfOneUserNeedsNoSetting) {
  constexpr uid_t lone = 54321;  // in no machine's group database
  FileStat stat;
  stat.mode = 02770;
  stat.owner = stat.group = lone;
  EXPECT_EQ(trust_problem("/cache", stat, Sharing::owner, {lone, {lone}}), "");
  EXPECT_EQ(trust_problem("/cache", stat, Sharing::owner, {lone, {100, lone}}), "");
  EXPECT_NE(trust_problem("/cache", stat, Sharing::owner, {lone, {100}}), "") << "no member";
  stat.owner = k_other;
  EXPECT_NE(trust_problem("/cache", stat, Sharing::owner, {lone, {lone}}), "");
  stat.owner = lone;
  stat.mode = 02777;
  EXPECT_NE(trust_problem("/cache", stat, Sharing::owner, {lone, {lone}}), "");
}

TEST(Trust, WhatIsMadeLetsNobodyWriteWhoIsNotNamed) {
  EXPECT_EQ(folder_mode(Sharing::owner), 0700u);
  EXPECT_EQ(entry_mode(Sharing::owner), 0600u);
  EXPECT_EQ(folder_mode(Sharing::group), 02770u);
  EXPECT_EQ(entry_mode(Sharing::group), 0660u);
  EXPECT_EQ(folder_mode(Sharing::all), 02775u);
  EXPECT_EQ(entry_mode(Sharing::all), 0664u);
}

}  // namespace
}  // namespace rlk::cache
