// SPDX-License-Identifier: Apache-2.0
// What goes by rule: rlk-jit prune and rlk-jit clear.
#include "tests/cli/cli_fixture.hpp"

#include <sys/stat.h>
#include <utime.h>

#include <algorithm>

namespace rlk::cli {
namespace {

class PruneTest : public CliTest {
 protected:
  // Entries "0", "1", ...: "0" was used last, each next one an hour earlier.
  void put_entries(int count) {
    for (int i = 0; i < count; ++i) set_age(put(folder_, std::to_string(i)), 3600 * i);
    entry_bytes_ = std::filesystem::file_size(path_of(0));
  }

  static void set_age(const std::string& path, std::int64_t seconds) {
    const utimbuf times{std::time(nullptr) - seconds, std::time(nullptr) - seconds};
    ASSERT_EQ(::utime(path.c_str(), &times), 0);
  }

  std::string path_of(int i) const {
    return folder_ + '/' + cache::entry_file_name(digest_of(std::to_string(i)), compiler);
  }

  // Of the entries that are there.
  std::string numbers() const {
    std::string found;
    for (int i = 0; i < 10; ++i) {
      if (std::filesystem::exists(path_of(i))) found += std::to_string(i);
    }
    return found;
  }

  // What a writer that died has left, and what is not the cache's.
  void put_others() {
    leftover_ = folder_ + '/' +
                cache::temp_file_name(std::filesystem::path(path_of(0)).filename().string());
    fresh_ = folder_ + '/' +
             cache::temp_file_name(std::filesystem::path(path_of(0)).filename().string());
    for (const auto& path : {leftover_, fresh_, folder_ + "/notes", folder_ + "/.lock"}) {
      test::write_file(path, "text");
    }
    set_age(leftover_, 4000);
  }

  std::uint64_t entry_bytes_ = 0;
  std::string leftover_;
  std::string fresh_;
};

TEST_F(PruneTest, PruneGoesDownToASize) {
  put_entries(5);
  const Ran ran = run({"prune", "--max-size", std::to_string(2 * entry_bytes_)});
  EXPECT_EQ(ran.code, 0);
  EXPECT_EQ(ran.err, "");
  EXPECT_EQ(numbers(), "01");
  const auto lines = lines_of(ran.out);
  ASSERT_EQ(lines.size(), 5u) << ran.out;
  EXPECT_TRUE(lines[0].starts_with("NAME"));
  EXPECT_TRUE(lines[1].starts_with("4 ")) << "the least recently used first";
  EXPECT_NE(lines[1].find(" 4h "), std::string::npos);
  EXPECT_TRUE(lines[4].starts_with("removed 3 entries, ")) << ran.out;
  EXPECT_NE(lines[4].find("; kept 2 entries, "), std::string::npos) << ran.out;
}

TEST_F(PruneTest, PruneTakesTheIdle) {
  put_entries(5);
  EXPECT_EQ(run({"prune", "--older-than", "150m"}).code, 0);
  EXPECT_EQ(numbers(), "012");
  EXPECT_EQ(run({"prune", "--older-than", "1d"}).out.substr(0, 17), "removed 0 entries");
  EXPECT_EQ(run({"prune", "--older-than", "30m", "--max-size", "1G"}).code, 0);
  EXPECT_EQ(numbers(), "0");
}

TEST_F(PruneTest, PruneWithoutOptionsTakesTheBudget) {
  put_entries(4);
  ::setenv("RLK_CACHE_SIZE", std::to_string(3 * entry_bytes_).c_str(), 1);
  EXPECT_EQ(run({"prune"}).code, 0);
  EXPECT_EQ(numbers(), "012");
  ::setenv("RLK_CACHE_SIZE", "0", 1);
  EXPECT_EQ(run({"prune"}).code, 0);
  EXPECT_EQ(numbers(), "012") << "no limit";
  ::setenv("RLK_CACHE_SIZE", "1", 1);
  EXPECT_EQ(run({"prune", "--older-than", "90m"}).code, 0);
  ::unsetenv("RLK_CACHE_SIZE");
  EXPECT_EQ(numbers(), "01") << "the age alone";
}

TEST_F(PruneTest, ASizeOfNothingIsNotOffered) {
  for (const std::string word : {"0", "many"}) {
    EXPECT_EQ(run({"prune", "--max-size", word}).err,
              "rlk-jit: --max-size: expected a size above 0, such as 500M or 1GiB (rlk-jit clear "
              "removes all), got \"" +
                  word + "\"\n");
  }
}

TEST_F(PruneTest, ADryRunRemovesNothing) {
  put_entries(3);
  put_others();
  const Ran dry = run({"prune", "--dry-run", "--max-size", std::to_string(entry_bytes_)});
  EXPECT_EQ(dry.code, 0);
  EXPECT_EQ(numbers(), "012");
  EXPECT_TRUE(std::filesystem::exists(leftover_));
  EXPECT_NE(dry.out.find("would remove 2 entries"), std::string::npos) << dry.out;
  const auto json = run_json({"prune", "-n", "--max-size", std::to_string(entry_bytes_)});
  EXPECT_EQ(json["dry_run"], true);
  EXPECT_EQ(json["removed_entries"], 2);
  const Ran real = run({"prune", "--max-size", std::to_string(entry_bytes_)});
  EXPECT_EQ(lines_of(real.out).size(), lines_of(dry.out).size());
  EXPECT_EQ(numbers(), "0");
}

TEST_F(PruneTest, PruneAsJson) {
  put_entries(3);
  put_others();
  const auto json = run_json({"prune", "--max-size", std::to_string(2 * entry_bytes_)});
  EXPECT_EQ(json["dry_run"], false);
  EXPECT_EQ(json["removed_entries"], 1);
  EXPECT_EQ(json["removed_bytes"], entry_bytes_);
  EXPECT_EQ(json["kept_entries"], 2);
  EXPECT_EQ(json["kept_bytes"], 2 * entry_bytes_);
  EXPECT_EQ(json["leftovers"], nlohmann::json::array({leftover_}));
  EXPECT_TRUE(json["problem"].is_null());
  ASSERT_EQ(json["removed"].size(), 1u);
  EXPECT_EQ(json["removed"][0]["name"], "2");
  EXPECT_EQ(json["removed"][0]["key"], digest_of("2"));
  EXPECT_EQ(json["removed"][0]["path"], path_of(2));
  EXPECT_EQ(json["removed"][0]["file_bytes"], entry_bytes_);
  EXPECT_FALSE(std::filesystem::exists(leftover_));
}

TEST_F(PruneTest, ClearRemovesAllThatIsTheCaches) {
  put_entries(3);
  put_others();
  put(builtin_, "generic");
  test::write_file(folder_ + "/.usage", "counts");
  const Ran ran = run({"clear", "--yes"});
  EXPECT_EQ(ran.code, 0);
  EXPECT_TRUE(ran.out.starts_with("removed 3 entries, ")) << ran.out;
  EXPECT_EQ(ran.err, "");
  EXPECT_EQ(numbers(), "");
  for (const auto& gone : {leftover_, folder_ + "/.usage"}) {
    EXPECT_FALSE(std::filesystem::exists(gone)) << gone;
  }
  for (const auto& kept : {fresh_, folder_ + "/notes", folder_ + "/.lock"}) {
    EXPECT_TRUE(std::filesystem::exists(kept)) << kept;
  }
  EXPECT_EQ(run_json({"list"}).size(), 1u) << "the built-in layer";
  const auto json = run_json({"clear", "-y"});
  EXPECT_EQ(json["removed_entries"], 0);
  EXPECT_EQ(json["kept_entries"], 0);
}

TEST_F(PruneTest, ClearAsksWhoIsThere) {
  put_entries(2);
  const Ran refused = run({"clear"});
  EXPECT_EQ(refused.code, 2);
  EXPECT_NE(refused.err.find("--yes"), std::string::npos);
  for (const char* text : {"", "\n", "n\n", "yeah\n"}) {
    std::istringstream answers(text);
    const Ran ran = run({"clear"}, {.answers = &answers});
    EXPECT_EQ(ran.code, 1) << text;
    EXPECT_NE(ran.err.find("Remove 2 entries ("), std::string::npos) << ran.err;
    EXPECT_NE(ran.err.find("nothing removed"), std::string::npos) << ran.err;
  }
  EXPECT_EQ(numbers(), "01");
  std::istringstream answers("y\n");
  EXPECT_EQ(run({"clear"}, {.answers = &answers}).code, 0);
  EXPECT_EQ(numbers(), "");
}

TEST_F(PruneTest, ARefusedFolderIsLeftAlone) {
  put_entries(2);
  ASSERT_EQ(::chmod(folder_.c_str(), 0777), 0);
  for (const std::vector<std::string>& words :
       {std::vector<std::string>{"prune", "--older-than", "1s"},
        {"clear", "--yes"},
        {"remove", "0"}}) {
    const Ran ran = run(words);
    EXPECT_EQ(ran.code, 1) << words[0];
    EXPECT_NE(ran.err.find("chmod go-w"), std::string::npos) << ran.err;
  }
  EXPECT_EQ(numbers(), "01");
}

TEST_F(PruneTest, AnAbsentCacheIsFine) {
  EXPECT_EQ(run({"prune"}).out, "removed 0 entries, 0 B; kept 0 entries, 0 B\n");
  EXPECT_EQ(run({"clear", "--yes"}).code, 0);
  EXPECT_FALSE(std::filesystem::exists(folder_));
}

}  // namespace
}  // namespace rlk::cli
