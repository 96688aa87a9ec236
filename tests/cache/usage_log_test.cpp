// SPDX-License-Identifier: Apache-2.0
// `.usage` on disk: many processes that append and fold, rights, faults.
#include "cache/usage_log.hpp"

#include "tests/cache/store_fixture.hpp"
#include "tests/support/child_processes.hpp"
#include "tests/support/faulty_file_system.hpp"

#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <numeric>
#include <thread>

namespace rlk::cache {
namespace {

class UsageLogTest : public StoreTest {
 protected:
  UsageLogTest() { std::ignore = make_folder(posix_file_system(), folder_, Sharing::owner); }

  UsageLog usage_log(UsageLimits limits = {}, FileSystem& files = posix_file_system(),
                     Sharing sharing = Sharing::owner) const {
    return UsageLog({.read_write = folder_, .sharing = sharing}, files, limits);
  }

  static Usage hit(const std::string& kernel, std::int64_t time_s = 100) {
    return {UsageEvent::hit, kernel, 1, 0, time_s};
  }

  std::uint64_t num_counted() const {
    std::uint64_t sum = 0;
    for (const Usage& usage : usage_log().read()) sum += usage.count;
    return sum;
  }

  std::string path_ = folder_ + "/.usage";
};

TEST_F(UsageLogTest, OtherProcessesReadWhatOneRecorded) {
  UsageLog one = usage_log();
  one.record(hit("a"));
  one.record({UsageEvent::compiled, "a", 1, 187, 110});
  usage_log().record(hit("a", 120));
  EXPECT_EQ(usage_log().read(), (std::vector<Usage>{{UsageEvent::hit, "a", 2, 0, 120},
                                                    {UsageEvent::compiled, "a", 1, 187, 110}}));
  EXPECT_EQ(mode_of(path_), 0600u);
  EXPECT_EQ(log_.text(), "");
}

TEST_F(UsageLogTest, WithoutAFolderNothingIsMade) {
  std::filesystem::remove_all(folder_);
  usage_log().record(hit("a"));
  EXPECT_FALSE(std::filesystem::exists(folder_));
  EXPECT_TRUE(usage_log().read().empty());
  UsageLog nowhere{StoreOptions{}};
  nowhere.record(hit("a"));
  EXPECT_TRUE(nowhere.read().empty());
}

TEST_F(UsageLogTest, ALargeFileIsReplacedByItsSums) {
  UsageLog one = usage_log({.most_bytes = 1000});
  std::uint64_t most_bytes = 0;
  for (int i = 0; i < 200; ++i) {
    one.record(hit(i % 2 == 0 ? "a" : "b", i));
    most_bytes = std::max<std::uint64_t>(most_bytes, std::filesystem::file_size(path_));
  }
  EXPECT_LE(most_bytes, 1000u);
  EXPECT_EQ(one.read(), (std::vector<Usage>{{UsageEvent::hit, "a", 100, 0, 198},
                                            {UsageEvent::hit, "b", 100, 0, 199}}));
  EXPECT_EQ(mode_of(path_), 0600u);
  // More kernels than it can hold: the last ones stay, and it stays small.
  for (int i = 0; i < 200; ++i) one.record(hit("kernel" + std::to_string(i), 1000 + i));
  EXPECT_LE(std::filesystem::file_size(path_), 1000u);
  const auto left = one.read();
  EXPECT_EQ(std::ranges::count(left, "kernel199", &Usage::kernel), 1);
  EXPECT_EQ(std::ranges::count(left, "a", &Usage::kernel), 0);
}

TEST_F(UsageLogTest, EightProcessesThatAppendAndFoldLoseNothing) {
  constexpr int k_num_processes = 8;
  constexpr int k_num_events = 300;
  const UsageLimits limits{.most_bytes = 2000, .most_wait = std::chrono::minutes(2)};
  std::vector<pid_t> children;
  for (int i = 0; i < k_num_processes; ++i) {
    children.push_back(test::start_child([&] {
      UsageLog one = usage_log(limits);
      for (int event = 0; event < k_num_events; ++event) {
        one.record({UsageEvent::compiled, "kernel" + std::to_string(event % 5), 1, 2, event});
      }
      return log_.text().empty();
    }));
  }
  for (const pid_t child : children) EXPECT_EQ(test::wait_for_child(child), "passed");
  const auto sums = usage_log().read();
  ASSERT_EQ(sums.size(), 5u);
  for (const Usage& usage : sums) {
    EXPECT_EQ(usage.count, std::uint64_t{k_num_processes} * k_num_events / 5) << usage.kernel;
    EXPECT_EQ(usage.ms, 2 * usage.count);
  }
  EXPECT_LE(std::filesystem::file_size(path_), limits.most_bytes);
  EXPECT_EQ(names_in(folder_), std::vector<std::string>{".usage"}) << "a temp file stayed";
}

TEST_F(UsageLogTest, ThreadsOfOneProcessLoseNothing) {
  UsageLog one = usage_log({.most_bytes = 1000, .most_wait = std::chrono::minutes(2)});
  {
    std::vector<std::jthread> threads;
    for (int i = 0; i < 4; ++i) {
      threads.emplace_back([&] {
        for (int event = 0; event < 100; ++event) one.record(hit("a"));
      });
    }
  }
  EXPECT_EQ(num_counted(), 400u);
}

// A process that was stopped with the lock: the wait is short, and there is one alone.
TEST_F(UsageLogTest, WhoWaitsForTheLockInVainRecordsNothingMore) {
  UsageLog one = usage_log({.most_wait = std::chrono::milliseconds(20)});
  {
    FileLock held(posix_file_system(), folder_ + "/.lock", Sharing::owner, k_usage_byte);
    ASSERT_EQ(held.try_lock(), 0);
    one.record(hit("a"));
  }
  one.record(hit("a"));
  EXPECT_TRUE(one.read().empty());
  usage_log().record(hit("a"));
  EXPECT_EQ(num_counted(), 1u);
  EXPECT_EQ(log_.text(), "");
}

TEST_F(UsageLogTest, NoKeyAndNoSweepHasItsByte) {
  EXPECT_NE(k_usage_byte, k_sweep_byte);
  EXPECT_NE(k_usage_byte, byte_of_key("ffffffffffffffffffffffffffffffff"));
  FileLock key(posix_file_system(), folder_ + "/.lock", Sharing::owner,
               byte_of_key("ffffffffffffffffffffffffffffffff"));
  ASSERT_EQ(key.try_lock(), 0);
  usage_log().record(hit("a"));
  EXPECT_EQ(num_counted(), 1u);
}

TEST_F(UsageLogTest, WhatEntriesAreRefusedForItIsToo) {
  usage_log().record(hit("a"));
  ASSERT_EQ(::chmod(path_.c_str(), 0622), 0);
  const std::string bytes = test::read_file(path_);
  usage_log().record(hit("b"));
  EXPECT_TRUE(usage_log().read().empty());
  EXPECT_EQ(test::read_file(path_), bytes);
  ASSERT_EQ(::chmod(path_.c_str(), 0600), 0);

  ASSERT_EQ(::chmod(folder_.c_str(), 0777), 0);
  usage_log().record(hit("b"));
  EXPECT_TRUE(usage_log().read().empty());
  EXPECT_EQ(test::read_file(path_), bytes);
  ASSERT_EQ(::chmod(folder_.c_str(), 0700), 0);

  // A link would have us write where another says.
  const std::string victim = temp_ / "victim";
  test::write_file(victim, "");
  std::filesystem::remove(path_);
  std::filesystem::create_symlink(victim, path_);
  usage_log().record(hit("b"));
  EXPECT_EQ(test::read_file(victim), "");
  std::filesystem::remove(path_);
  ASSERT_EQ(::mkfifo(path_.c_str(), 0600), 0);
  usage_log().record(hit("b"));
  EXPECT_TRUE(usage_log().read().empty());
  EXPECT_EQ(log_.text(), "");
}

TEST_F(UsageLogTest, AGroupMayWriteASharedOneWhateverTheUmask) {
  std::filesystem::remove_all(folder_);
  std::ignore = make_folder(posix_file_system(), folder_, Sharing::group);
  const mode_t before = ::umask(077);
  UsageLog shared = usage_log({.most_bytes = 100}, posix_file_system(), Sharing::group);
  shared.record(hit("a"));
  EXPECT_EQ(mode_of(path_), 0660u);
  for (int i = 0; i < 20; ++i) shared.record(hit("a"));
  ::umask(before);
  EXPECT_EQ(mode_of(path_), 0660u) << "a folded one";
  EXPECT_EQ(shared.read().at(0).count, 21u);
}

TEST_F(UsageLogTest, AReadOnlyFolderIsReadAndNothingIsSaid) {
  usage_log().record(hit("a"));
  test::FaultyFileSystem faulty;
  faulty.set_read_only();
  usage_log({}, faulty).record(hit("a"));
  for (const int error : {EACCES, EROFS}) {
    test::FaultyFileSystem closed;
    closed.fail_verb("open", error);
    usage_log({}, closed).record(hit("b"));
  }
  EXPECT_EQ(log_.text(), "");
  EXPECT_EQ(std::ranges::count(usage_log().read(), "b", &Usage::kernel), 0);
}

// On a network file system the lock lies elsewhere.
TEST_F(UsageLogTest, ANetworkFolderIsRecordedToo) {
  test::FaultyFileSystem faulty;
  faulty.set_network_folder(folder_);
  UsageLog one({.read_write = folder_, .local_folders = {temp_.path()}}, faulty);
  one.record(hit("a"));
  EXPECT_EQ(num_counted(), 1u);
  EXPECT_FALSE(std::filesystem::exists(folder_ + "/.lock"));
}

class UsageErrorTest : public UsageLogTest, public testing::WithParamInterface<int> {};

INSTANTIATE_TEST_SUITE_P(Usage, UsageErrorTest,
                         testing::Values(ENOSPC, EACCES, EROFS, ESTALE, EINTR, EIO, EMFILE, ENOENT,
                                         EDQUOT, EPERM, EBUSY, EAGAIN, ENOLCK),
                         [](const auto& values) {
                           return std::string(::strerrorname_np(values.param));
                         });

TEST_P(UsageErrorTest, AtAnyCallNothingIsThrownSaidOrLostButTheLine) {
  const UsageLimits limits{.most_bytes = 50, .most_wait = std::chrono::milliseconds(1)};
  for (const bool is_lasting : {false, true}) {
    for (int n = 1;; ++n) {
      SCOPED_TRACE(n);
      test::write_file(path_, "1 hit 3 0 5 a\n1 hit 4 0 5 a\n1 hit 5 0 5 a\n");
      ASSERT_EQ(::chmod(path_.c_str(), 0600), 0);
      test::FaultyFileSystem faulty;
      is_lasting ? faulty.fail_from(n, GetParam()) : faulty.fail_call(n, GetParam());
      UsageLog one = usage_log(limits, faulty);
      one.record(hit("a"));
      const bool is_past_the_end = faulty.num_calls() < n;
      EXPECT_LE(one.read().size(), 1u);
      const std::uint64_t sum = num_counted();
      EXPECT_TRUE(sum == 12 || sum == 13) << sum;
      if (is_past_the_end) {
        EXPECT_EQ(sum, 13u);
        EXPECT_GT(n, 20) << "calls of a record that folds";
        EXPECT_EQ(test::read_file(path_).find('\n') + 1, test::read_file(path_).size());
        break;
      }
      EXPECT_EQ(log_.text(), "");
      std::filesystem::remove_all(folder_);
      std::ignore = make_folder(posix_file_system(), folder_, Sharing::owner);
    }
  }
}

TEST_F(UsageLogTest, AFullDiskCostsLinesAlone) {
  for (std::size_t space = 0; space < 60; space += 7) {
    test::FaultyFileSystem faulty;
    faulty.set_space_bytes(space);
    UsageLog one = usage_log({}, faulty);
    for (int i = 0; i < 4; ++i) one.record(hit("a"));
    EXPECT_LE(num_counted(), 4u);
    std::filesystem::remove(path_);
  }
  EXPECT_EQ(log_.text(), "");
}

}  // namespace
}  // namespace rlk::cache
