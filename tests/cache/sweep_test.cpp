// SPDX-License-Identifier: Apache-2.0
// What a sweep removes and what it keeps, and when one is due.
#include "cache/sweep.hpp"

#include "tests/cache/store_fixture.hpp"
#include "tests/support/child_processes.hpp"
#include "tests/support/faulty_file_system.hpp"

#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <fstream>
#include <thread>

namespace rlk::cache {
namespace {

constexpr std::uint64_t k_no_limit = std::numeric_limits<std::uint64_t>::max();

class SweepTest : public StoreTest {
 protected:
  // Entries 0 to count - 1, the first the least recently used: one hour between two of them.
  void put_entries(int count) {
    for (int i = 0; i < count; ++i) {
      store().put(entry_of(i), compiler_a);
      set_age(path_of(i), 3600 * (count - i));
    }
    entry_bytes_ = std::filesystem::file_size(path_of(0));
    remove_stamp();
  }

  void remove_stamp() { std::filesystem::remove(folder_ + "/.swept"); }

  // The numbers of the entries that are there, of `count`.
  std::vector<int> numbers_there(int count) {
    std::vector<int> numbers;
    for (int i = 0; i < count; ++i) {
      if (std::filesystem::exists(path_of(i))) numbers.push_back(i);
    }
    return numbers;
  }

  Swept sweep_to(std::uint64_t num_entries) {
    return sweep(posix_file_system(), folder_,
                 {num_entries * entry_bytes_, num_entries * entry_bytes_, {}});
  }

  DiskStore store_for(std::uint64_t num_entries, FileSystem& files = posix_file_system()) {
    // Some bytes more, as entries of longer numbers are longer.
    return DiskStore({.read_write = folder_, .budget_bytes = num_entries * entry_bytes_ + 100},
                     files);
  }

  std::string temp_path(int number) const {
    return folder_ + '/' + temp_file_name(entry_file_name(key_of(number).digest(), compiler_a));
  }

  std::uint64_t entry_bytes_ = 0;
};

using Numbers = std::vector<int>;

TEST_F(SweepTest, TheLeastRecentlyUsedGoFirst) {
  put_entries(5);
  set_age(path_of(0), 0);
  const Swept swept = sweep_to(3);
  EXPECT_EQ(numbers_there(5), (Numbers{0, 3, 4}));
  EXPECT_EQ(swept.num_entries, 3u);
  EXPECT_EQ(swept.bytes, 3 * entry_bytes_);
  EXPECT_EQ(swept.num_removed, 2u);
  EXPECT_EQ(swept.removed_bytes, 2 * entry_bytes_);
  EXPECT_EQ(swept.problem, "");
}

TEST_F(SweepTest, WithinTheBudgetAllStay) {
  put_entries(5);
  EXPECT_EQ(sweep_to(5).num_removed, 0u);
  EXPECT_EQ(sweep(posix_file_system(), folder_, {}).num_removed, 0u);
  EXPECT_EQ(numbers_there(5).size(), 5u);
}

TEST_F(SweepTest, OverTheBudgetItGoesDownToItsAim) {
  put_entries(10);
  sweep(posix_file_system(), folder_, {9 * entry_bytes_, 4 * entry_bytes_, {}});
  EXPECT_EQ(numbers_there(10), (Numbers{6, 7, 8, 9}));
  sweep(posix_file_system(), folder_, {9 * entry_bytes_, 1 * entry_bytes_, {}});
  EXPECT_EQ(numbers_there(10).size(), 4u);
}

TEST_F(SweepTest, IdleEntriesGo) {
  put_entries(5);  // idle for 5, 4, 3, 2 and 1 hours
  const Swept swept =
      sweep(posix_file_system(), folder_, {k_no_limit, k_no_limit, 2 * 3600 + 1800});
  EXPECT_EQ(swept.num_removed, 3u);
  EXPECT_EQ(numbers_there(5), (Numbers{3, 4}));
}

TEST_F(SweepTest, ABudgetOfNothingRemovesAll) {
  put_entries(3);
  EXPECT_EQ(sweep_to(0).num_entries, 0u);
  EXPECT_TRUE(names_in(folder_).empty());
}

TEST_F(SweepTest, StrangersAreNeitherCountedNorTouched) {
  put_entries(2);
  const std::vector<std::string> strangers = {".0123.tmp", "README", "notes.rlk"};
  for (const auto& name : strangers) {
    test::write_file(folder_ + '/' + name, std::string(100000, 'x'));
    set_age(folder_ + '/' + name, 1000000);
  }
  std::filesystem::create_directory(path_of(7));
  EXPECT_EQ(sweep_to(2).num_removed, 0u);
  EXPECT_EQ(names_in(folder_).size(), 6u);
}

TEST_F(SweepTest, WhatDeadWritersLeftGoesAfterAnHour) {
  put_entries(1);
  const std::string old = temp_path(1), fresh = temp_path(2);
  test::write_file(old, "half");
  test::write_file(fresh, "half");
  set_age(old, 3700);
  set_age(fresh, 3500);
  EXPECT_EQ(sweep(posix_file_system(), folder_, {}).num_removed, 0u);
  EXPECT_FALSE(std::filesystem::exists(old));
  EXPECT_TRUE(std::filesystem::exists(fresh));
}

TEST_F(SweepTest, AnEntryBeingReadGoesOn) {
  put_entries(1);
  const std::string bytes = test::read_file(path_of(0));
  std::ifstream open(path_of(0), std::ios::binary);
  sweep_to(0);
  EXPECT_TRUE(names_in(folder_).empty());
  EXPECT_EQ(std::string(std::istreambuf_iterator<char>(open), {}), bytes);
}

// Used or replaced after the folder was listed.
TEST_F(SweepTest, AnEntryUsedMeanwhileStays) {
  put_entries(3);
  test::FaultyFileSystem files;
  int num_stats = 0;
  files.set_observer([&](std::string_view verb) {
    if (verb == "stat" && ++num_stats == 4) set_age(path_of(0), 0);
  });
  sweep(files, folder_, {0, 0, {}});
  EXPECT_EQ(numbers_there(3), (Numbers{0}));
}

TEST_F(SweepTest, AnAbsentFolderIsNoTrouble) {
  EXPECT_EQ(sweep(posix_file_system(), folder_, {}).problem, "");
  EXPECT_EQ(store().prune({0, 0, {}}).problem, "");
  EXPECT_FALSE(std::filesystem::exists(folder_));
}

TEST_F(SweepTest, APruneIsOfTheReadWriteLayerAlone) {
  put_entries(2);
  const std::string below = layer_with("below", entry_of(1), compiler_a);
  DiskStore({std::nullopt, {folder_, below}}).prune({0, 0, {}});
  EXPECT_EQ(numbers_there(2).size(), 2u);
  EXPECT_EQ(DiskStore({folder_, {below}}).prune({0, 0, {}}).num_removed, 2u);
  EXPECT_EQ(names_in(below).size(), 1u);
}

TEST_F(SweepTest, ARefusedFolderIsNotPruned) {
  put_entries(2);
  ASSERT_EQ(::chmod(folder_.c_str(), 0777), 0);
  EXPECT_EQ(store().prune({0, 0, {}}).num_removed, 0u);
  EXPECT_EQ(numbers_there(2).size(), 2u);
}

TEST_F(SweepTest, APutSweepsToFourFifthsOfTheBudget) {
  put_entries(10);
  store_for(10).put(entry_of(10), compiler_a);  // the 11th
  EXPECT_EQ(numbers_there(11), (Numbers{3, 4, 5, 6, 7, 8, 9, 10}));
  EXPECT_EQ(log_.text(), "");
}

TEST_F(SweepTest, PutsSweepAtMostHourlyOverAllProcesses) {
  put_entries(4);
  store_for(100).put(entry_of(4), compiler_a);  // sweeps and removes nothing
  store_for(2).put(entry_of(5), compiler_a);
  EXPECT_EQ(test::wait_for_child(test::start_child([&] {
              store_for(2).put(entry_of(6), compiler_a);
              return true;
            })),
            "passed");
  EXPECT_EQ(numbers_there(7).size(), 7u);
  set_age(folder_ + "/.swept", 3500);
  store_for(2).put(entry_of(7), compiler_a);
  EXPECT_EQ(numbers_there(8).size(), 8u);
  set_age(folder_ + "/.swept", 3601);
  store_for(2).put(entry_of(8), compiler_a);
  EXPECT_EQ(numbers_there(9), (Numbers{8}));
  for (int i = 9; i < 12; ++i) store_for(2).put(entry_of(i), compiler_a);
  EXPECT_EQ(numbers_there(12), (Numbers{8, 9, 10, 11})) << "that sweep counts too";
}

TEST_F(SweepTest, AStampOfTheFutureStopsNoSweep) {
  put_entries(4);
  test::write_file(folder_ + "/.swept", "");
  set_age(folder_ + "/.swept", -1000000);
  store_for(2).put(entry_of(4), compiler_a);
  EXPECT_EQ(numbers_there(5), (Numbers{4}));
}

TEST_F(SweepTest, WithoutABudgetOnlyTempFilesGo) {
  put_entries(4);
  const std::string temp = temp_path(1);
  test::write_file(temp, "half");
  set_age(temp, 4000);
  store().put(entry_of(4), compiler_a);
  EXPECT_EQ(numbers_there(5).size(), 5u);
  EXPECT_EQ(names_in(folder_).size(), 5u);
}

TEST_F(SweepTest, OneSweepsAtATime) {
  put_entries(4);
  {
    FileLock sweeping(posix_file_system(), folder_ + "/.lock", Sharing::owner, k_sweep_byte);
    ASSERT_EQ(sweeping.try_lock(), 0);
    store_for(2).put(entry_of(4), compiler_a);
    EXPECT_EQ(numbers_there(5).size(), 5u);
  }
  store_for(2).put(entry_of(4), compiler_a);
  EXPECT_EQ(numbers_there(5), (Numbers{4}));
}

TEST_F(SweepTest, WithoutALockItSweepsAllTheSame) {
  put_entries(4);
  test::FaultyFileSystem faulty;
  faulty.fail_verb("lock_byte", ENOLCK);
  store_for(2, faulty).put(entry_of(4), compiler_a);
  EXPECT_EQ(numbers_there(5), (Numbers{4}));
  EXPECT_EQ(log_.text(), "");
}

// Other nodes' sweeps and strange file systems: each entry is tried, the first trouble is said
// once.
TEST_F(SweepTest, WhatCannotBeRemovedIsSaidOnceAndSweptAround) {
  put_entries(4);
  test::FaultyFileSystem faulty;
  faulty.fail_verb("unlink", EBUSY, 2);
  DiskStore one = store_for(2, faulty);
  one.put(entry_of(4), compiler_a);
  EXPECT_EQ(numbers_there(5), (Numbers{0, 1, 4}));
  EXPECT_TRUE(log_.contains("not swept to its budget: " + folder_ + ": unlink: ")) << log_.text();
  remove_stamp();
  faulty.fail_verb("unlink", EBUSY, 1);
  one.put(entry_of(4), compiler_a);
  EXPECT_EQ(log_.num_lines(), 1) << log_.text();
}

TEST_F(SweepTest, WithoutRightsItStopsAtOnce) {
  put_entries(50);
  test::FaultyFileSystem faulty;
  faulty.fail_verb("unlink", EROFS);
  EXPECT_EQ(sweep(faulty, folder_, {0, 0, {}}).problem,
            folder_ + ": unlink: Read-only file system");
  EXPECT_EQ(faulty.num_calls("unlink"), 1);
  EXPECT_EQ(numbers_there(50).size(), 50u);
}

TEST_F(SweepTest, NoStampNoSweep) {
  put_entries(4);
  std::filesystem::create_directory(folder_ + "/.swept");
  set_age(folder_ + "/.swept", 4000);
  DiskStore one = store_for(2);
  one.put(entry_of(4), compiler_a);
  one.put(entry_of(5), compiler_a);
  EXPECT_EQ(numbers_there(6).size(), 6u);
  EXPECT_EQ(log_.num_lines(), 1) << log_.text();
}

class SweepErrorTest : public SweepTest, public testing::WithParamInterface<int> {};

INSTANTIATE_TEST_SUITE_P(Sweep, SweepErrorTest,
                         testing::Values(ENOSPC, EACCES, EROFS, ESTALE, EINTR, EIO, EMFILE, ENOENT,
                                         EBUSY),
                         [](const auto& values) {
                           return std::string(::strerrorname_np(values.param));
                         });

// The put has succeeded by then, and what it stored is there whatever becomes of the sweep.
TEST_P(SweepErrorTest, AtAnyCallOfASweepThePutStands) {
  put_entries(4);
  for (const bool is_lasting : {false, true}) {
    for (int n = 1;; ++n) {
      SCOPED_TRACE(n);
      for (int i = 0; i < 4; ++i) {
        test::write_file(path_of(i), encode_entry(entry_of(i)));
        set_age(path_of(i), 3600 * (5 - i));
      }
      remove_stamp();
      log_.clear();
      test::FaultyFileSystem faulty;
      int num_seen = 0;
      bool is_sweeping = false;
      faulty.set_observer([&](std::string_view) {
        // From the look at the stamp on: the entry is published and the folder synced by then.
        is_sweeping =
            is_sweeping || (faulty.num_calls("rename") > 0 && faulty.num_calls("fsync") > 1 &&
                            faulty.num_calls("close") > 1);
        if (is_sweeping && ++num_seen == n) {
          is_lasting ? faulty.fail_from(faulty.num_calls() + 1, GetParam())
                     : faulty.fail_call(faulty.num_calls() + 1, GetParam());
        }
      });
      DiskStore one = store_for(2, faulty);
      one.put(entry_of(4), compiler_a);
      if (num_seen < n) {
        EXPECT_GT(n, 15) << "calls of a sweep";
        break;
      }
      EXPECT_LE(log_.num_lines(), 1) << log_.text();
      EXPECT_TRUE(store().get(key_of(4), compiler_a) == entry_of(4));
      EXPECT_EQ(names_in(folder_).size(), numbers_there(5).size()) << "a temp file stayed";
    }
  }
}

}  // namespace
}  // namespace rlk::cache
