// SPDX-License-Identifier: Apache-2.0
// Chance: random corruptions of entries, and readers, writers and a sweeper at once.
#include "cache/disk_store.hpp"
#include "tests/cache/store_fixture.hpp"
#include "tests/support/child_processes.hpp"
#include "tests/support/long_tests.hpp"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <random>
#include <thread>

namespace rlk::cache {
namespace {

using Random = std::mt19937;

class Corruption {
 public:
  // `good` and `other` are two sound files of different keys.
  Corruption(std::string good, std::string other)
      : good_(std::move(good)), other_(std::move(other)) {}

  // Bytes that differ from the good file's.
  std::string next(Random& random) {
    std::string bytes;
    do {
      bytes = damage(random);
    } while (bytes == good_);
    return bytes;
  }

 private:
  std::string damage(Random& random) const {
    std::string bytes = good_;
    const std::size_t at = random() % bytes.size();
    const std::size_t count = std::min<std::size_t>(1 + random() % 64, bytes.size() - at);
    switch (random() % 9) {
      case 0:  // flipped bits, in the head as often as elsewhere
        for (unsigned i = 0; i <= random() % 8; ++i) {
          char& byte = bytes[random() % (random() % 2 == 0 ? entry_head_bytes : bytes.size())];
          byte = static_cast<char>(byte ^ (1 << random() % 8));
        }
        return bytes;
      case 1:  // cut short
        bytes.resize(at);
        return bytes;
      case 2:  // garbage of any length
        bytes.resize(random() % (2 * good_.size()));
        for (char& byte : bytes) byte = static_cast<char>(random());
        return bytes;
      case 3:  // garbage behind a sound head
        for (std::size_t i = entry_head_bytes; i < bytes.size(); ++i) {
          bytes[i] = static_cast<char>(random());
        }
        return bytes;
      case 4:  // a hole, as file systems leave after a crash
        std::fill_n(bytes.begin() + static_cast<std::ptrdiff_t>(at), count, '\0');
        return bytes;
      case 5:  // another entry's payload, key or checksum in place
        return bytes.substr(0, at) + other_.substr(std::min(at, other_.size()));
      case 6:  // bytes twice, or missing
        return random() % 2 == 0 ? bytes.insert(at, good_, at, count) : bytes.erase(at, count);
      case 7:  // a sound entry of another key
        return other_;
      default:  // trailing bytes
        return bytes + other_.substr(0, 1 + random() % other_.size());
    }
  }

  std::string good_;
  std::string other_;
};

TEST_F(StoreTest, RandomCorruptionsAreLoggedMisses) {
  store().put(entry_of(1), compiler_a);
  Corruption corruption(test::read_file(path_of(1)), encode_entry(entry_of(2222, "other payload")));
  Random random(11);
  for (int i = 0; i < test::amount(10000, 100000); ++i) {
    log_.clear();
    std::filesystem::remove(path_of(1));  // ext4 flushes a file that is cut to nothing
    test::write_file(path_of(1), corruption.next(random));
    DiskStore one = store();
    ASSERT_FALSE(one.get(key_of(1), compiler_a)) << i;
    ASSERT_EQ(log_.num_lines(), 1) << i << log_.text();
    ASSERT_TRUE(log_.contains("damaged entry not used")) << i << log_.text();
    ASSERT_FALSE(one.get(key_of(1), i % 2 == 0 ? compiler_a : "")) << i;
    ASSERT_EQ(log_.num_lines(), 1) << i << log_.text();
  }
  store().put(entry_of(1), compiler_a);
  EXPECT_EQ(store().get(key_of(1), compiler_a), entry_of(1));
}

// The number is in key and payload, the generation in the metadata: all three must fit.
Entry generation_of(int number, int generation) {
  Entry entry{key_of(number).bytes, std::to_string(generation), {}};
  entry.payload.assign(static_cast<std::size_t>(1000 + 100 * (generation % 10)),
                       static_cast<std::byte>(number + generation));
  return entry;
}

TEST_F(StoreTest, ReadersWritersAndASweeperAtOnce) {
  constexpr int k_num_keys = 40;
  const std::uint64_t budget = k_num_keys / 2 * encode_entry(generation_of(1, 5)).size();
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(test::amount(2, 60));
  const auto go_on = [&] { return std::chrono::steady_clock::now() < end; };
  const auto own_store = [&] { return DiskStore({.read_write = folder_, .budget_bytes = budget}); };
  std::atomic<int> num_hits = 0, num_misses = 0, num_removed = 0;
  const auto read = [&](unsigned seed) {
    Random random(seed);
    DiskStore one = own_store();
    while (go_on()) {
      const int number = static_cast<int>(random() % k_num_keys);
      const auto entry = one.get(key_of(number), random() % 4 == 0 ? "" : compiler_a);
      if (entry && *entry != generation_of(number, std::stoi(entry->metadata))) return false;
      ++(entry ? num_hits : num_misses);
      if (random() % 100 == 0) {
        for (const auto& listed : one.list()) {
          if (!listed.problem.empty()) return false;
        }
      }
    }
    return true;
  };
  const auto write = [&](unsigned seed) {
    Random random(seed);
    DiskStore one = own_store();
    while (go_on()) {
      const int number = static_cast<int>(random() % k_num_keys);
      const Turn turn = one.take_turn(key_of(number), compiler_a);
      one.put(generation_of(number, static_cast<int>(random() % 100)), compiler_a);
    }
    return true;
  };
  const auto sweep_on = [&] {
    DiskStore one = own_store();
    while (go_on()) {
      const Swept swept = one.prune({budget, budget / 5 * 4, {}});
      if (!swept.problem.empty()) return false;
      num_removed += static_cast<int>(swept.num_removed);
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return true;
  };

  const pid_t other_writer = test::start_child([&] { return write(1) && log_.text().empty(); });
  const pid_t other_reader = test::start_child([&] { return read(2) && log_.text().empty(); });
  {
    std::vector<std::jthread> threads;
    for (unsigned seed = 3; seed < 5; ++seed) {
      threads.emplace_back([&, seed] { EXPECT_TRUE(write(seed)); });
      threads.emplace_back([&, seed] { EXPECT_TRUE(read(seed)); });
    }
    threads.emplace_back([&] { EXPECT_TRUE(sweep_on()); });
  }
  EXPECT_EQ(test::wait_for_child(other_writer), "passed");
  EXPECT_EQ(test::wait_for_child(other_reader), "passed");
  EXPECT_GT(num_hits, 0);
  EXPECT_GT(num_misses, 0);
  EXPECT_GT(num_removed, 0);
  EXPECT_EQ(log_.text(), "");
  EXPECT_LE(own_store().prune({budget, budget, {}}).bytes, budget);
  for (const auto& name : names_in(folder_)) EXPECT_TRUE(parse_entry_file_name(name)) << name;
}

}  // namespace
}  // namespace rlk::cache
