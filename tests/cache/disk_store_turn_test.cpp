// SPDX-License-Identifier: Apache-2.0
// One's turn to compile: who gets it at once, what ends a wait, and what becomes of it without a
// lock.
#include "cache/disk_store.hpp"
#include "tests/cache/store_fixture.hpp"
#include "tests/support/child_processes.hpp"
#include "tests/support/faulty_file_system.hpp"
#include "tests/support/forwarding_file_system.hpp"

#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <thread>

namespace rlk::cache {
namespace {

using std::chrono::milliseconds;

class TurnTest : public StoreTest {
 protected:
  // One that does not wait long, and one that waits longer than any test should.
  DiskStore impatient(FileSystem& files = posix_file_system()) const {
    return DiskStore({.read_write = folder_, .turn_timeout = milliseconds(30)}, files);
  }
  DiskStore patient(FileSystem& files = posix_file_system()) const {
    return DiskStore({.read_write = folder_, .turn_timeout = std::chrono::minutes(2)}, files);
  }

  static bool is_free(const Turn& turn) {
    return turn.outcome == TurnOutcome::compile && turn.may_put() && !turn.entry;
  }
};

TEST_F(TurnTest, TheFirstCompilesAndTheNextTakesWhatItStored) {
  DiskStore first = store(), second = patient();
  Turn turn = first.take_turn(key_of(1), compiler_a);
  ASSERT_TRUE(is_free(turn));
  EXPECT_TRUE(turn.lock);
  std::jthread waiting([&] {
    const Turn other = second.take_turn(key_of(1), compiler_a);
    EXPECT_EQ(other.outcome, TurnOutcome::stored);
    EXPECT_EQ(other.entry, entry_of(1));
  });
  std::this_thread::sleep_for(milliseconds(20));
  first.put(entry_of(1), compiler_a);
  turn = {};
  waiting.join();
  EXPECT_EQ(log_.text(), "");
}

TEST_F(TurnTest, ATurnThatEndsWithoutAnEntryGoesToTheNext) {
  DiskStore first = store(), second = patient();
  Turn turn = first.take_turn(key_of(1), compiler_a);
  std::jthread waiting([&] { EXPECT_TRUE(is_free(second.take_turn(key_of(1), compiler_a))); });
  std::this_thread::sleep_for(milliseconds(20));
  turn = {};
}

// Between the miss and the turn another process was faster.
TEST_F(TurnTest, AFreeTurnLooksOnceMore) {
  store().put(entry_of(1), compiler_a);
  const Turn turn = store().take_turn(key_of(1), compiler_a);
  EXPECT_EQ(turn.outcome, TurnOutcome::stored);
  EXPECT_EQ(turn.entry, entry_of(1));
  EXPECT_TRUE(turn.may_put()) << "it may not load";
  EXPECT_TRUE(turn.lock) << "and then it is compiled in this turn";
}

TEST_F(TurnTest, AnotherCompilersEntryIsNone) {
  store().put(entry_of(1), compiler_b);
  EXPECT_TRUE(is_free(store().take_turn(key_of(1), compiler_a)));
}

TEST_F(TurnTest, DamageIsNoEntry) {
  store().put(entry_of(1), compiler_a);
  test::write_file(path_of(1), "damage");
  DiskStore one = store();
  EXPECT_FALSE(one.get(key_of(1), compiler_a));
  EXPECT_TRUE(is_free(one.take_turn(key_of(1), compiler_a)));
  EXPECT_EQ(log_.num_lines(), 1) << log_.text();
}

// As another machine does over a network file system, whose lock is not ours.
TEST_F(TurnTest, AnEntryThatAppearsEndsTheWait) {
  DiskStore first = store(), second = patient();
  const Turn turn = first.take_turn(key_of(1), compiler_a);
  std::jthread waiting([&] {
    const Turn other = second.take_turn(key_of(1), compiler_a);
    EXPECT_EQ(other.outcome, TurnOutcome::stored);
    EXPECT_EQ(other.entry, entry_of(1));
  });
  std::this_thread::sleep_for(milliseconds(20));
  store().put(entry_of(1), compiler_a);
  waiting.join();
  EXPECT_TRUE(turn.lock);
}

TEST_F(TurnTest, KeysDoNotWaitForEachOther) {
  DiskStore one = patient();
  std::vector<Turn> turns(300);
  int number = 0;
  for (Turn& turn : turns) turn = one.take_turn(key_of(number++), compiler_a);
  for (const Turn& turn : turns) ASSERT_TRUE(is_free(turn) && turn.lock);
}

TEST_F(TurnTest, WhoWaitsTooLongCompilesWithoutPutting) {
  const Turn turn = store().take_turn(key_of(1), compiler_a);
  DiskStore other = impatient();
  for (int i = 0; i < 2; ++i) {
    const Turn late = other.take_turn(key_of(1), compiler_a);
    EXPECT_EQ(late.outcome, TurnOutcome::timed_out);
    EXPECT_FALSE(late.may_put());
    EXPECT_FALSE(late.lock);
  }
  EXPECT_EQ(log_.num_lines(), 1) << log_.text();
  EXPECT_TRUE(log_.contains("waited 0.03")) << log_.text();
  EXPECT_TRUE(log_.contains(key_of(1).digest())) << log_.text();
}

// A process that was stopped (SIGSTOP, a debugger) holds its lock for ever.
TEST_F(TurnTest, AProcessThatHangsHoldsNobodyForEver) {
  test::SharedMemory<std::atomic<bool>> held;
  const pid_t child = test::start_child([&] {
    const Turn turn = store().take_turn(key_of(1), compiler_a);
    *held = is_free(turn);
    return ::pause() == 0;
  });
  while (!*held) std::this_thread::yield();
  EXPECT_EQ(impatient().take_turn(key_of(1), compiler_a).outcome, TurnOutcome::timed_out);
  EXPECT_EQ(test::kill_child(child), "signal 9");
  EXPECT_TRUE(is_free(patient().take_turn(key_of(1), compiler_a)));
}

TEST_F(TurnTest, AWaitIsCancelled) {
  const Turn turn = store().take_turn(key_of(1), compiler_a);
  int num_pauses = 0;
  const Turn other = patient().take_turn(key_of(1), compiler_a, [&](milliseconds time) {
    EXPECT_GE(time, milliseconds(1));
    EXPECT_LE(time, milliseconds(100));
    return ++num_pauses < 5;
  });
  EXPECT_EQ(other.outcome, TurnOutcome::cancelled);
  EXPECT_EQ(num_pauses, 5);
  EXPECT_TRUE(is_free(store().take_turn(key_of(2), compiler_a, [](milliseconds) {
    ADD_FAILURE() << "a free turn waits for nothing";
    return false;
  })));
}

// The dispatcher's: a fork waits for those who build, and those who wait for a turn let it pass.
TEST_F(TurnTest, ForksPassWhoWaits) {
  const Turn turn = store().take_turn(key_of(1), compiler_a);
  std::atomic<int> num_pauses = 0;
  std::atomic<bool> done = false;
  std::jthread waiting([&] {
    patient().take_turn(key_of(1), compiler_a, [&](milliseconds time) {
      ++num_pauses;
      return sleep_for(time) && !done;
    });
  });
  while (num_pauses < 3) std::this_thread::yield();
  for (int i = 0; i < 20; ++i) {
    // The child has neither the waiting thread nor a copy of what that has open.
    EXPECT_EQ(test::wait_for_child(test::start_child([&] {
                return is_free(store().take_turn(key_of(2), compiler_a)) &&
                       impatient().take_turn(key_of(1), compiler_a).outcome ==
                           TurnOutcome::timed_out;
              })),
              "passed");
  }
  done = true;
}

TEST_F(TurnTest, WithoutAFolderToPutIntoTheTurnIsFree) {
  DiskStore none{StoreOptions{}};
  DiskStore read_only({std::nullopt, {folder_}});
  for (DiskStore* one : {&none, &none, &read_only}) {
    const Turn turn = one->take_turn(key_of(1), compiler_a);
    EXPECT_TRUE(is_free(turn));
    EXPECT_FALSE(turn.lock);
  }
  EXPECT_FALSE(std::filesystem::exists(folder_));
  EXPECT_EQ(log_.text(), "");
}

TEST_F(TurnTest, AReadOnlyDiskIsSaidOnceForLockAndPut) {
  std::filesystem::create_directory(folder_);
  ASSERT_EQ(::chmod(folder_.c_str(), 0700), 0);
  test::FaultyFileSystem faulty;
  faulty.set_read_only();
  DiskStore one = store(faulty);
  for (int i = 0; i < 3; ++i) {
    const Turn turn = one.take_turn(key_of(i), compiler_a);
    EXPECT_TRUE(is_free(turn));
    EXPECT_FALSE(turn.lock);
    one.put(entry_of(i), compiler_a);
  }
  EXPECT_EQ(log_.num_lines(), 1) << log_.text();
  EXPECT_TRUE(log_.contains("not writable")) << log_.text();
}

TEST_F(TurnTest, WithoutALockEntriesAreStoredAllTheSame) {
  for (const int error : {ENOLCK, ENOSYS, EINVAL, ENOTSUP, EIO}) {
    log_.clear();
    test::FaultyFileSystem faulty;
    faulty.fail_verb("lock_byte", error);
    DiskStore one = store(faulty);
    for (int i = 0; i < 3; ++i) {
      EXPECT_TRUE(is_free(one.take_turn(key_of(i), compiler_a)));
      one.put(entry_of(i), compiler_a);
      EXPECT_TRUE(one.get(key_of(i), compiler_a));
    }
    EXPECT_EQ(log_.num_lines(), 1) << log_.text();
    EXPECT_TRUE(log_.contains("no lock (")) << log_.text();
    std::filesystem::remove_all(folder_);
  }
}

// As after `sudo rlk-jit`: the folder is ours and the lock file is not.
TEST_F(TurnTest, ALockFileThatCannotBeOpenedIsSaidAndEntriesAreStored) {
  store().put(entry_of(1), compiler_a);
  std::filesystem::remove(folder_ + "/.lock");
  std::filesystem::create_directory(folder_ + "/.lock");
  DiskStore one = store();
  for (int i = 0; i < 3; ++i) {
    EXPECT_TRUE(is_free(one.take_turn(key_of(2), compiler_a)));
  }
  one.put(entry_of(2), compiler_a);
  EXPECT_TRUE(one.get(key_of(2), compiler_a));
  EXPECT_EQ(log_.num_lines(), 1) << log_.text();
  EXPECT_TRUE(log_.contains(".lock: Is a directory")) << log_.text();
}

TEST_F(TurnTest, ARefusedFolderHasNoLock) {
  std::filesystem::create_directory(folder_);
  ASSERT_EQ(::chmod(folder_.c_str(), 0777), 0);
  DiskStore one = store();
  const Turn turn = one.take_turn(key_of(1), compiler_a);
  EXPECT_TRUE(is_free(turn));
  EXPECT_FALSE(turn.lock);
  EXPECT_FALSE(std::filesystem::exists(folder_ + "/.lock"));
  EXPECT_EQ(log_.num_lines(), 1) << log_.text();
}

// Over a network file system the lock is this machine's, and no file is made beside the entries.
TEST_F(TurnTest, AFarFolderIsLockedOnThisMachine) {
  std::filesystem::create_directory(temp_ / "tmp");
  const auto far_store = [&](test::FaultyFileSystem& files) {
    files.set_network_folder(folder_);
    return DiskStore(
        {.read_write = folder_, .turn_timeout = milliseconds(30), .local_folders = {temp_ / "tmp"}},
        files);
  };
  test::FaultyFileSystem files_one, files_two;
  DiskStore one = far_store(files_one), two = far_store(files_two);
  const Turn turn = one.take_turn(key_of(1), compiler_a);
  EXPECT_TRUE(is_free(turn) && turn.lock);
  EXPECT_EQ(two.take_turn(key_of(1), compiler_a).outcome, TurnOutcome::timed_out);
  EXPECT_TRUE(is_free(two.take_turn(key_of(2), compiler_a)));
  EXPECT_FALSE(std::filesystem::exists(folder_ + "/.lock"));
}

// Locks that all succeed (an old NFS) cost compiles, never an entry.
TEST_F(TurnTest, LocksThatExcludeNobodyDoNoHarm) {
  class NoExclusion final : public test::ForwardingFileSystem {
    int lock_byte(int, std::uint64_t) override { return 0; }
    int unlock_byte(int, std::uint64_t) override { return 0; }
  } files;
  DiskStore shared = store(files);
  std::vector<std::jthread> threads(8);
  for (std::jthread& thread : threads) {
    thread = std::jthread([&] {
      const Turn turn = shared.take_turn(key_of(1), compiler_a);
      if (!turn.entry) shared.put(entry_of(1), compiler_a);
      EXPECT_EQ(shared.get(key_of(1), compiler_a), entry_of(1));
    });
  }
  threads.clear();
  EXPECT_EQ(names_in(folder_).size(), 1u);
  EXPECT_EQ(log_.text(), "");
}

class TurnErrorTest : public TurnTest, public testing::WithParamInterface<int> {};

INSTANTIATE_TEST_SUITE_P(Turn, TurnErrorTest,
                         testing::Values(ENOSPC, EACCES, EROFS, ESTALE, EINTR, EIO, EMFILE, ENOENT,
                                         ENOLCK),
                         [](const auto& values) {
                           return std::string(::strerrorname_np(values.param));
                         });

// Whatever fails: the caller compiles, or takes what is stored, and hears of it once at most.
TEST_P(TurnErrorTest, AtAnyCallTheCallerGoesOn) {
  for (const bool is_stored : {false, true}) {
    for (const bool is_lasting : {false, true}) {
      for (int n = 1;; ++n) {
        SCOPED_TRACE(n);
        log_.clear();
        std::filesystem::remove_all(folder_);
        std::filesystem::create_directory(folder_);
        ASSERT_EQ(::chmod(folder_.c_str(), 0700), 0);
        if (is_stored) test::write_file(path_of(1), encode_entry(entry_of(1)));
        test::FaultyFileSystem faulty;
        is_lasting ? faulty.fail_from(n, GetParam()) : faulty.fail_call(n, GetParam());
        {
          const Turn turn = impatient(faulty).take_turn(key_of(1), compiler_a);
          EXPECT_TRUE(turn.outcome == TurnOutcome::stored ? turn.entry == entry_of(1)
                                                          : is_free(turn));
          EXPECT_LE(log_.num_lines(), 1) << log_.text();
        }
        if (is_stored) {
          EXPECT_TRUE(store().get(key_of(1), compiler_a) == entry_of(1));
        }
        const Turn next = impatient().take_turn(key_of(1), compiler_a);
        EXPECT_NE(next.outcome, TurnOutcome::timed_out) << "the lock was left behind";
        if (faulty.num_calls() < n) {
          EXPECT_GT(n, 10) << "calls of a turn";
          break;
        }
      }
    }
  }
}

}  // namespace
}  // namespace rlk::cache
