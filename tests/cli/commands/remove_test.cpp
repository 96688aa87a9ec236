// SPDX-License-Identifier: Apache-2.0
#include "tests/cli/cli_fixture.hpp"

namespace rlk::cli {
namespace {

using std::filesystem::exists;

TEST_F(CliTest, RemoveTakesNamesAndKeys) {
  const std::string a = put(folder_, "a"), b = put(folder_, "b"), c = put(folder_, "c");
  const Ran ran = run({"remove", "a", digest_of("b").substr(0, 10)});
  EXPECT_EQ(ran.code, 0);
  EXPECT_EQ(ran.err, "");
  const auto lines = lines_of(ran.out);
  ASSERT_EQ(lines.size(), 2u);
  EXPECT_TRUE(lines[0].starts_with("removed  a ")) << ran.out;
  EXPECT_TRUE(lines[1].starts_with("removed  b ")) << ran.out;
  EXPECT_FALSE(exists(a));
  EXPECT_FALSE(exists(b));
  EXPECT_TRUE(exists(c));
}

TEST_F(CliTest, RemoveAsJson) {
  const std::string a = put(folder_, "a");
  const auto json = run_json({"remove", "a", digest_of("a")});
  ASSERT_EQ(json.size(), 1u) << "once";
  EXPECT_EQ(json[0]["name"], "a");
  EXPECT_EQ(json[0]["key"], digest_of("a"));
  EXPECT_EQ(json[0]["path"], a);
  EXPECT_EQ(run({"remove", "a", "--json"}).out, "[]\n");
}

TEST_F(CliTest, RemoveGoesOnPastAWordThatFitsNothing) {
  const std::string a = put(folder_, "a");
  const Ran ran = run({"remove", "lost", "a"});
  EXPECT_EQ(ran.code, 1);
  EXPECT_NE(ran.err.find("\"lost\": no entry"), std::string::npos) << ran.err;
  EXPECT_FALSE(exists(a));
}

TEST_F(CliTest, RemoveOfSeveralMustBeMeant) {
  const std::string one = put(folder_, "toy.fwd[V=1]"), two = put(folder_, "toy.fwd[V=2]");
  const std::string other = put(folder_, "other");
  const Ran ran = run({"remove", "toy"});
  EXPECT_EQ(ran.code, 1);
  EXPECT_EQ(ran.out, "");
  EXPECT_NE(ran.err.find("2 entries match"), std::string::npos) << ran.err;
  EXPECT_NE(ran.err.find("--all-matching"), std::string::npos) << ran.err;
  EXPECT_TRUE(exists(one));
  EXPECT_EQ(run({"remove", "--all-matching", "toy"}).code, 0);
  EXPECT_FALSE(exists(one));
  EXPECT_FALSE(exists(two));
  EXPECT_TRUE(exists(other));
}

// As of a shell variable that is not set.
TEST_F(CliTest, AnEmptyWordRemovesNothing) {
  const std::string a = put(folder_, "a");
  EXPECT_EQ(run({"remove", "--all-matching", ""}).code, 1);
  EXPECT_TRUE(exists(a));
}

TEST_F(CliTest, RemoveLeavesReadOnlyLayersAlone) {
  const std::string below = put(temp_ / "below", "toy");
  const std::string builtin = put(builtin_, "toy");
  const Ran ran = run({"remove", "toy", "--layer", temp_ / "below"});
  EXPECT_EQ(ran.code, 1);
  EXPECT_NE(ran.err.find("read-only layer " + (temp_ / "below")), std::string::npos) << ran.err;
  EXPECT_FALSE(exists(folder_));
  const std::string ours = put(folder_, "toy");
  EXPECT_EQ(run({"remove", "toy", "--layer", temp_ / "below"}).code, 0);
  EXPECT_FALSE(exists(ours));
  EXPECT_TRUE(exists(below));
  EXPECT_TRUE(exists(builtin));
}

// A name that a read-only kernel has does not remove one of ours that it is a part of.
TEST_F(CliTest, RemoveTakesTheBetterFitOfAnyLayer) {
  put(builtin_, "toy");
  const std::string longer = put(folder_, "toy2");
  EXPECT_EQ(run({"remove", "toy"}).code, 1);
  EXPECT_TRUE(exists(longer));
}

TEST_F(CliTest, RemoveTakesDamagedEntriesByKey) {
  const std::string bad = put(folder_, "bad");
  test::write_file(bad, "damage");
  EXPECT_EQ(run({"remove", digest_of("bad")}).code, 0);
  EXPECT_FALSE(exists(bad));
}

}  // namespace
}  // namespace rlk::cli
