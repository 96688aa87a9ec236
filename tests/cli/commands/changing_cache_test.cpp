// SPDX-License-Identifier: Apache-2.0
// Commands over a cache that other processes fill, sweep and remove meanwhile.
#include "tests/cli/cli_fixture.hpp"
#include "tests/support/forwarding_file_system.hpp"
#include "tests/support/long_tests.hpp"

#include <atomic>
#include <thread>
#include <tuple>

namespace rlk::cli {
namespace {

constexpr int k_num_entries = 600;  // more than one thread takes at a time

// Spares the tests the waits for the disk.
class UnsyncedFileSystem final : public test::ForwardingFileSystem {
 public:
  int fsync(int) override { return 0; }
};

class ChangingCacheTest : public CliTest {
 protected:
  static std::string name_of(int i) { return "toy" + std::to_string(i); }

  static std::string file_of(int i) {
    return cache::entry_file_name(digest_of(name_of(i)), compiler);
  }

  void write_entry(int i) {
    const nlohmann::json metadata = {{"name", name_of(i)}, {"compiler", compiler}};
    const std::string bytes = cache::encode_entry(
        {key_of(name_of(i)).bytes, metadata.dump(), std::vector<std::byte>(100)});
    std::ignore = cache::publish(files_, folder_, file_of(i), bytes, cache::Sharing::owner);
  }

  void write_every(int step, int begin) {
    std::error_code ignored;
    std::filesystem::create_directory(folder_, ignored);
    for (int i = begin; i < k_num_entries; i += step) write_entry(i);
  }

  // Removes a part, now and then the whole folder, and writes that part anew.
  void change(const std::atomic<bool>& stop) {
    constexpr int k_num_parts = 7;
    for (int round = 0; !stop; ++round) {
      const int part = round % k_num_parts;
      for (int i = part; i < k_num_entries; i += k_num_parts) {
        files_.unlink(folder_ + '/' + file_of(i));
      }
      std::error_code ignored;
      if (round % 5 == 4) std::filesystem::remove_all(folder_, ignored);
      write_every(k_num_parts, part);
    }
  }

  UnsyncedFileSystem files_;
};

TEST_F(ChangingCacheTest, EveryCommandGoesOn) {
  write_every(1, 0);
  std::atomic<bool> stop = false;
  std::jthread changer([&] { change(stop); });
  for (int i = 0; i < test::amount(10, 200); ++i) {
    for (const std::vector<std::string>& words : {std::vector<std::string>{"list"},
                                                  {"list", "--json"},
                                                  {"verify"},
                                                  {"verify", "--json"},
                                                  {"prune", "--max-size", "100K"},
                                                  {"prune", "--older-than", "1h", "--dry-run"},
                                                  {"remove", "--all-matching", "toy1"},
                                                  {"clear", "--yes"}}) {
      const Ran ran = run(words);
      // Its kernels may just be gone.
      const bool is_missing = words[0] == "remove" && ran.err.find("no entry") != std::string::npos;
      EXPECT_EQ(ran.code, is_missing ? 1 : 0) << words[0] << ' ' << ran.out << ran.err;
      EXPECT_EQ(is_missing ? "" : ran.err, "") << words[0];
      EXPECT_TRUE(words.back() != "--json" || nlohmann::json::accept(ran.out)) << ran.out;
    }
  }
  stop = true;
  changer.join();
  EXPECT_EQ(log_.text(), "");
}

TEST_F(ChangingCacheTest, ManyEntriesAreListedInOrder) {
  write_every(1, 0);
  const auto all = run_json({"list"});
  ASSERT_EQ(all.size(), std::size_t{k_num_entries});
  for (std::size_t i = 1; i < all.size(); ++i) {
    EXPECT_LT(all[i - 1]["name"].get<std::string>(), all[i]["name"].get<std::string>());
  }
  EXPECT_EQ(lines_of(run({"list"}).out).size(), std::size_t{k_num_entries + 1});
  EXPECT_EQ(run({"verify"}).out, "600 entries sound\n");
}

}  // namespace
}  // namespace rlk::cli
