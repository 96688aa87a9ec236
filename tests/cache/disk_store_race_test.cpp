// SPDX-License-Identifier: Apache-2.0
// Writers, readers and removers at once, over threads and processes: every read is one whole
// generation.
#include "cache/disk_store.hpp"
#include "tests/cache/store_fixture.hpp"

#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <thread>

namespace rlk::cache {
namespace {

// Key, metadata and payload of one generation tell its number, payloads differ in size.
Entry generation(int number) {
  Entry entry{key_of(1).bytes, std::to_string(number), {}};
  entry.payload.assign(100 + 5000 * static_cast<std::size_t>(number % 7),
                       static_cast<std::byte>(number));
  return entry;
}

bool is_whole(const Entry& entry) { return entry == generation(std::stoi(entry.metadata)); }

TEST_F(StoreTest, TwoWritersOfOneKeyAndReadersNeverMixGenerations) {
  DiskStore shared = store();
  shared.put(generation(0), compiler_a);
  std::atomic<int> num_writing = 2;
  std::atomic<int> num_read = 0;
  std::vector<std::jthread> threads;
  threads.reserve(5);
  for (int writer = 0; writer < 2; ++writer) {
    threads.emplace_back([&, writer] {
      for (int i = 0; i < 100; ++i) shared.put(generation(2 * i + writer), compiler_a);
      --num_writing;
    });
  }
  for (int reader = 0; reader < 3; ++reader) {
    threads.emplace_back([&, reader] {
      while (num_writing > 0) {
        const auto entry = shared.get(key_of(1), reader == 0 ? "" : compiler_a);
        ASSERT_TRUE(entry);
        ASSERT_TRUE(is_whole(*entry));
        ++num_read;
      }
    });
  }
  threads.clear();
  EXPECT_GT(num_read, 0);
  EXPECT_EQ(log_.text(), "");
  EXPECT_EQ(names_in(folder_).size(), 1u);
}

TEST_F(StoreTest, EntriesMayVanishUnderReadersAndListings) {
  DiskStore shared = store();
  std::atomic<bool> done = false;
  std::vector<std::jthread> threads;
  threads.emplace_back([&] {
    for (int i = 0; i < 200; ++i) {
      shared.put(generation(i), compiler_a);
      std::filesystem::remove(path_of(1));
    }
    done = true;
  });
  threads.emplace_back([&] {
    while (!done) {
      const auto entry = shared.get(key_of(1), compiler_a);
      ASSERT_TRUE(!entry || is_whole(*entry));
    }
  });
  threads.emplace_back([&] {
    while (!done) {
      for (const auto& listed : shared.list()) ASSERT_EQ(listed.problem, "");
    }
  });
  threads.clear();
  EXPECT_EQ(log_.text(), "");
}

TEST_F(StoreTest, ManyProcessesMakeTheFolderAndOneKeyAtOnce) {
  std::vector<pid_t> children;
  for (int i = 0; i < 32; ++i) {
    children.push_back(::fork());
    if (children.back() == 0) {
      DiskStore one = store();
      one.put(generation(i), compiler_a);
      const auto entry = one.get(key_of(1), compiler_a);
      ::_exit(entry && is_whole(*entry) && log_.text().empty() ? 0 : 1);
    }
  }
  for (const pid_t child : children) {
    int status = 1;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
  }
  EXPECT_EQ(names_in(folder_).size(), 1u);
  EXPECT_EQ(mode_of(folder_), 0700u);
}

}  // namespace
}  // namespace rlk::cache
