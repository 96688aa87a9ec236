// SPDX-License-Identifier: Apache-2.0
#include "tests/cli/cli_fixture.hpp"

#include <sys/stat.h>
#include <utime.h>

#include <algorithm>

namespace rlk::cli {
namespace {

// An entry that is sound by its checksum, with this key and metadata, under the name of `name`.
std::string put_raw(const std::string& folder, const std::string& name, const cache::Key& key,
                    const std::string& metadata) {
  cache::DiskStore({.read_write = folder}).put({key.bytes, metadata, {}}, compiler);
  const std::string stored = folder + '/' + cache::entry_file_name(key.digest(), compiler);
  const std::string wanted = folder + '/' + name;
  std::filesystem::rename(stored, wanted);
  return wanted;
}

TEST_F(CliTest, VerifyOfSoundEntriesIsFine) {
  put(folder_, "a");
  put(folder_, "b");
  put(builtin_, "c");
  const Ran ran = run({"verify"});
  EXPECT_EQ(ran.code, 0);
  EXPECT_EQ(ran.err, "");
  EXPECT_EQ(ran.out, "3 entries sound\n");
  const auto all = run_json({"verify"});
  ASSERT_EQ(all.size(), 3u);
  for (const auto& one : all) EXPECT_TRUE(one["problem"].is_null()) << one;
  EXPECT_EQ(all[2]["layer"], "built-in");
  EXPECT_EQ(all[2]["key"], digest_of("c"));
}

TEST_F(CliTest, VerifyOfNoCacheIsFineAndMakesNothing) {
  EXPECT_EQ(run({"verify"}).out, "0 entries sound\n");
  EXPECT_EQ(run({"verify", "--json"}).out, "[]\n");
  EXPECT_FALSE(std::filesystem::exists(folder_));
}

// A listing reads the head alone and finds nothing.
TEST_F(CliTest, VerifyReadsThePayload) {
  put(folder_, "good");
  const std::string bad = put(folder_, "bad");
  std::string bytes = test::read_file(bad);
  bytes[bytes.size() - 100] ^= 1;
  test::write_file(bad, bytes);
  ASSERT_EQ(run({"list"}).out.find("checksum"), std::string::npos);
  const Ran ran = run({"verify"});
  EXPECT_EQ(ran.code, 1);
  ASSERT_EQ(lines_of(ran.out).size(), 2u) << ran.out;
  EXPECT_EQ(lines_of(ran.out)[0], bad + "  wrong checksum");
  EXPECT_TRUE(lines_of(ran.out)[1].starts_with("1 entry sound, 1 of no use")) << ran.out;
  const Ran json = run({"verify", "--json"});
  EXPECT_EQ(json.code, 1);
  const auto all = nlohmann::json::parse(json.out);
  ASSERT_EQ(all.size(), 2u);
  EXPECT_EQ(all[0]["problem"], "wrong checksum");
  EXPECT_EQ(all[0]["path"], bad);
  EXPECT_TRUE(all[1]["problem"].is_null());
}

TEST_F(CliTest, VerifyTellsWhatDoesNotFit) {
  const std::string sound = R"({"name":"a","target":"sm_90a","compiler":"llvm-19.1.7"})";
  const auto key = cache::KeyBuilder().field("specialization", "a").field("target", "sm_90a");
  const std::string own = cache::entry_file_name(key.finish().digest(), compiler);
  struct Case {
    std::string file;
    cache::Key key;
    std::string metadata;
    std::string problem;  // a part of it
  };
  const std::string elsewhere = cache::entry_file_name(digest_of("b"), compiler);
  const std::string by_other = cache::entry_file_name(key.finish().digest(), "llvm-20");
  const cache::Key no_key{"no key"};
  const std::string of_no_key = cache::entry_file_name(no_key.digest(), compiler);
  for (const Case& one : std::vector<Case>{
           {own, key.finish(), sound, ""},
           {elsewhere, key.finish(), sound, "holds another key than its name says"},
           {own, key.finish(), "{", "metadata: expected a JSON object"},
           {own, key.finish(), "[]", "metadata: expected a JSON object"},
           {own, key.finish(), R"({"name":"b","target":"sm_90a","compiler":"llvm-19.1.7"})",
            "metadata: name: expected \"a\", got \"b\""},
           {own, key.finish(), R"({"name":"a","target":7,"compiler":"llvm-19.1.7"})",
            "metadata: target: expected \"sm_90a\", got \"\""},
           {by_other, key.finish(), sound, "metadata: compiler: expected \"llvm-20\""},
           {of_no_key, no_key, sound, "key: expected tagged fields"}}) {
    const std::string path = put_raw(folder_, one.file, one.key, one.metadata);
    const auto all = run_json({"verify"});
    ASSERT_EQ(all.size(), 1u);
    if (one.problem.empty()) {
      EXPECT_TRUE(all[0]["problem"].is_null()) << all;
    } else {
      ASSERT_TRUE(all[0]["problem"].is_string()) << one.problem;
      EXPECT_NE(all[0]["problem"].get<std::string>().find(one.problem), std::string::npos) << all;
      EXPECT_EQ(run({"verify"}).code, 1);
    }
    std::filesystem::remove(path);
  }
}

TEST_F(CliTest, VerifyTellsOfEntriesAndFoldersThatAreRefused) {
  const std::string writable = put(folder_, "a");
  ASSERT_EQ(::chmod(writable.c_str(), 0666), 0);
  EXPECT_EQ(run({"verify"}).code, 1);
  EXPECT_NE(run({"verify"}).out.find("chmod go-w"), std::string::npos);
  ASSERT_EQ(::chmod(writable.c_str(), 0600), 0);
  ASSERT_EQ(::chmod(folder_.c_str(), 0777), 0);
  const Ran ran = run({"verify"});
  EXPECT_EQ(ran.code, 1);
  EXPECT_NE(ran.err.find("chmod go-w '" + folder_), std::string::npos) << ran.err;
}

TEST_F(CliTest, ALayerThatIsNotThereIsNamed) {
  put(folder_, "a");
  const std::string absent = temp_ / "absent";
  const std::string file = temp_ / "file";
  test::write_file(file, "no folder");
  for (const std::string& layer : {absent, file}) {
    const std::string line = "rlk-jit: " + layer + ": no such folder\n";
    const Ran verified = run({"verify", "--layer", layer});
    EXPECT_EQ(verified.code, 1);
    EXPECT_EQ(verified.err, line);
    EXPECT_EQ(verified.out, "1 entry sound\n");
    for (const char* command : {"list", "stats"}) {
      const Ran ran = run({command, "--layer", layer});
      EXPECT_EQ(ran.code, 0);
      EXPECT_EQ(ran.err, line) << command;
    }
    EXPECT_EQ(run({"list", "--html", "-", "--layer", layer}).err, line);
    const Ran missing = run({"show", "lost", "--layer", layer});
    EXPECT_TRUE(missing.err.ends_with(line)) << missing.err;
    const Ran miss = run({"explain", "linear_logp.fwd[x=bf16 V=10 D=20]@sm_90a", "--layer", layer});
    EXPECT_EQ(miss.code, 1);
    EXPECT_EQ(miss.err, line);
    EXPECT_EQ(run({"export", temp_ / "pack", "--layer", layer}).err,
              "rlk-jit: left out: " + layer + ": no such folder\n");
  }
  ::setenv("RLK_CACHE_PATH", absent.c_str(), 1);
  const Ran verified = run({"verify"});
  ::unsetenv("RLK_CACHE_PATH");
  EXPECT_EQ(verified.code, 1);
  EXPECT_NE(verified.err.find(absent), std::string::npos);
}

TEST_F(CliTest, ListAndStatsNameAFolderThatIsRefused) {
  put(folder_, "a");
  ASSERT_EQ(::chmod(folder_.c_str(), 0777), 0);
  for (const char* command : {"list", "stats"}) {
    const Ran ran = run({command});
    EXPECT_NE(ran.err.find("chmod go-w '" + folder_), std::string::npos) << command << ran.err;
  }
}

TEST_F(CliTest, VerifyTakesNames) {
  put(folder_, "good");
  test::write_file(put(folder_, "bad"), "damage");
  EXPECT_EQ(run({"verify", "good"}).out, "1 entry sound\n");
  EXPECT_EQ(run({"verify", "good", digest_of("good")}).out, "1 entry sound\n") << "once";
  EXPECT_EQ(run({"verify", digest_of("bad")}).code, 1);
  const Ran ran = run({"verify", "good", "lost"});
  EXPECT_EQ(ran.code, 1);
  EXPECT_EQ(ran.out, "1 entry sound\n");
  EXPECT_NE(ran.err.find("\"lost\""), std::string::npos);
}

TEST_F(CliTest, VerifyNamesWhatDeadWritersLeft) {
  const std::string entry = put(folder_, "a");
  const std::string left =
      folder_ + '/' + cache::temp_file_name(std::filesystem::path(entry).filename().string());
  test::write_file(left, "half");
  EXPECT_EQ(run({"verify"}).err, "") << "it may still be written";
  const utimbuf old{std::time(nullptr) - 4000, std::time(nullptr) - 4000};
  ASSERT_EQ(::utime(left.c_str(), &old), 0);
  const Ran ran = run({"verify"});
  EXPECT_EQ(ran.code, 0);
  EXPECT_NE(ran.err.find(left), std::string::npos) << ran.err;
  EXPECT_TRUE(std::filesystem::exists(left));
}

}  // namespace
}  // namespace rlk::cli
