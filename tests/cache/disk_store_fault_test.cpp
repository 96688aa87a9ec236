// SPDX-License-Identifier: Apache-2.0
// File-system calls that fail: no exception, no half-written entry, one warning a kind.
#include "cache/disk_store.hpp"
#include "tests/cache/store_fixture.hpp"
#include "tests/support/faulty_file_system.hpp"

#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>

namespace rlk::cache {
namespace {

class StoreFaultTest : public StoreTest {
 protected:
  int num_calls_of_put() {
    test::FaultyFileSystem counting;
    store(counting).put(entry_of(1), compiler_a);
    std::filesystem::remove_all(folder_);
    return counting.num_calls();
  }

  // What is visible under entry 1's name is nothing or whole.
  bool is_stored_whole() {
    const bool visible = std::filesystem::exists(path_of(1));
    const auto entry = store().get(key_of(1), compiler_a);
    EXPECT_EQ(visible, entry.has_value());
    if (entry) {
      EXPECT_EQ(*entry, entry_of(1));
    }
    return visible;
  }
};

class StoreErrorTest : public StoreFaultTest, public testing::WithParamInterface<int> {};

INSTANTIATE_TEST_SUITE_P(Store, StoreErrorTest,
                         testing::Values(ENOSPC, EACCES, EROFS, ESTALE, EINTR, EIO, EMFILE, ENOENT,
                                         EDQUOT, EPERM, EBUSY),
                         [](const auto& values) {
                           return std::string(::strerrorname_np(values.param));
                         });

TEST_P(StoreErrorTest, AtAnyCallOfAPutNothingHalfBecomesVisible) {
  const int num_calls = num_calls_of_put();
  ASSERT_GT(num_calls, 8);
  for (int n = 1; n <= num_calls; ++n) {
    for (const bool lasting : {false, true}) {
      SCOPED_TRACE(n);
      log_.clear();
      test::FaultyFileSystem faulty;
      lasting ? faulty.fail_from(n, GetParam()) : faulty.fail_call(n, GetParam());
      store(faulty).put(entry_of(1), compiler_a);
      EXPECT_LE(log_.num_lines(), 1) << log_.text();
      const bool stored = is_stored_whole();
      EXPECT_TRUE(stored || log_.num_lines() == 1) << "a lost entry must be said";
      if (!lasting) {
        EXPECT_EQ(names_in(folder_).size(), stored ? 1u : 0u) << "temp file";
      }
      std::filesystem::remove_all(folder_);
    }
  }
}

TEST_P(StoreErrorTest, AtAnyCallOfAGetItIsAMissThatTouchesNothing) {
  store().put(entry_of(1), compiler_a);
  const std::string bytes = test::read_file(path_of(1));
  for (const char* compiler : {compiler_a, ""}) {
    test::FaultyFileSystem counting;
    ASSERT_TRUE(store(counting).get(key_of(1), compiler));
    for (int n = 1; n <= counting.num_calls(); ++n) {
      SCOPED_TRACE(n);
      log_.clear();
      test::FaultyFileSystem faulty;
      faulty.fail_from(n, GetParam());
      DiskStore one = store(faulty);
      const auto entry = one.get(key_of(1), compiler);
      if (entry) {  // only the close or the time stamp failed
        EXPECT_EQ(*entry, entry_of(1));
      }
      EXPECT_LE(log_.num_lines(), 1) << log_.text();
      EXPECT_TRUE(entry || GetParam() == ENOENT || log_.num_lines() == 1);
      EXPECT_EQ(test::read_file(path_of(1)), bytes);
    }
  }
}

TEST_P(StoreErrorTest, AtAnyCallListAndLayersGoOn) {
  store().put(entry_of(1), compiler_a);
  store().put(entry_of(2), compiler_a);
  for (int n = 1; n <= 20; ++n) {
    test::FaultyFileSystem faulty;
    faulty.fail_call(n, GetParam());
    DiskStore one = store(faulty);
    EXPECT_LE(one.list().size(), 2u);
    one.layers();
  }
}

// Interrupted and stale calls are made anew, so that a busy or shared disk is no miss.
TEST_F(StoreFaultTest, PassingTroubleIsRetried) {
  for (const char* verb : {"open", "read", "write", "fsync", "rename"}) {
    test::FaultyFileSystem faulty;
    faulty.fail_verb(verb, EINTR, 3);
    DiskStore one = store(faulty);
    one.put(entry_of(1), compiler_a);
    EXPECT_TRUE(one.get(key_of(1), compiler_a)) << verb;
    std::filesystem::remove_all(folder_);
  }
  store().put(entry_of(1), compiler_a);
  for (const char* verb : {"open", "read", "stat_open"}) {
    test::FaultyFileSystem faulty;
    faulty.fail_verb(verb, ESTALE, 3);
    EXPECT_TRUE(store(faulty).get(key_of(1), compiler_a)) << verb;
  }
  for (const char* verb : {"open", "write", "fsync", "rename"}) {
    test::FaultyFileSystem faulty;
    faulty.fail_verb(verb, ESTALE, 3);
    store(faulty).put(entry_of(2), compiler_a);
    EXPECT_TRUE(store().get(key_of(2), compiler_a)) << verb;
    std::filesystem::remove(path_of(2));
  }
  EXPECT_EQ(log_.text(), "");
}

TEST_F(StoreFaultTest, EndlessTroubleEnds) {
  store().put(entry_of(1), compiler_a);
  for (const int error : {EINTR, ESTALE}) {
    for (const char* verb : {"open", "read", "write", "fsync", "rename"}) {
      test::FaultyFileSystem faulty;
      faulty.fail_verb(verb, error);
      DiskStore one = store(faulty);
      one.get(key_of(1), compiler_a);
      one.put(entry_of(2), compiler_a);
      EXPECT_LT(faulty.num_calls(), 500) << verb;
    }
  }
}

TEST_F(StoreFaultTest, ShortCountsAreContinued) {
  test::FaultyFileSystem faulty;
  faulty.set_most_bytes_a_call(7);
  DiskStore one = store(faulty);
  one.put(entry_of(1), compiler_a);
  EXPECT_EQ(one.get(key_of(1), compiler_a), entry_of(1));
  EXPECT_EQ(one.list().at(0).problem, "");
}

TEST_F(StoreFaultTest, AFullDiskLeavesNothingAndIsSaidOnce) {
  for (std::size_t space = 0; space < 900; space += 97) {
    log_.clear();
    test::FaultyFileSystem faulty;
    faulty.set_space_bytes(space);
    DiskStore one = store(faulty);
    for (int i = 1; i < 5; ++i) one.put(entry_of(i), compiler_a);
    std::size_t num_stored = 0;
    for (int i = 1; i < 5; ++i) num_stored += one.get(key_of(i), compiler_a) ? 1 : 0;
    EXPECT_EQ(names_in(folder_).size(), num_stored);
    EXPECT_EQ(log_.num_lines(), 1) << log_.text();
    EXPECT_TRUE(log_.contains("No space left")) << log_.text();
    std::filesystem::remove_all(folder_);
  }
}

TEST_F(StoreFaultTest, AReadOnlyDiskIsSaidOnceAndReadOn) {
  store().put(entry_of(1), compiler_a);
  set_age(path_of(1), 100000);  // the stamp that cannot be set is no trouble
  test::FaultyFileSystem faulty;
  faulty.set_read_only();
  DiskStore one = store(faulty);
  for (int i = 2; i < 5; ++i) one.put(entry_of(i), compiler_a);
  const int num_calls = faulty.num_calls();
  one.put(entry_of(5), compiler_a);
  EXPECT_EQ(faulty.num_calls(), num_calls) << "given up";
  EXPECT_EQ(one.get(key_of(1), compiler_a), entry_of(1));
  EXPECT_EQ(log_.num_lines(), 1) << log_.text();
  EXPECT_TRUE(log_.contains("not writable")) << log_.text();
  EXPECT_EQ(names_in(folder_).size(), 1u);
}

TEST_F(StoreFaultTest, PassingWriteErrorsDoNotEndWriting) {
  test::FaultyFileSystem faulty;
  faulty.fail_verb("write", EIO, 1);
  DiskStore one = store(faulty);
  one.put(entry_of(1), compiler_a);
  one.put(entry_of(1), compiler_a);
  EXPECT_TRUE(one.get(key_of(1), compiler_a));
  EXPECT_EQ(log_.num_lines(), 1) << log_.text();
}

TEST_F(StoreFaultTest, AFailedSyncOrCloseIsNoEntry) {
  for (const char* verb : {"fsync", "close"}) {
    test::FaultyFileSystem faulty;
    faulty.fail_verb(verb, EIO, 1);
    store(faulty).put(entry_of(1), compiler_a);
    EXPECT_TRUE(names_in(folder_).empty()) << verb;
  }
}

TEST_F(StoreFaultTest, AFileSystemThatCannotSyncStillStores) {
  test::FaultyFileSystem faulty;
  faulty.fail_verb("fsync", EINVAL);
  store(faulty).put(entry_of(1), compiler_a);
  EXPECT_TRUE(store().get(key_of(1), compiler_a));
}

TEST_F(StoreFaultTest, AFolderRemovedInTheMiddleOfAPutIsMadeAgain) {
  for (const std::string_view when : {"open", "rename"}) {
    test::FaultyFileSystem faulty;
    bool removed = false;
    faulty.set_observer([&](std::string_view verb) {
      if (verb == when && !removed) removed = std::filesystem::remove_all(folder_) > 0;
    });
    DiskStore one = store(faulty);
    one.put(entry_of(1), compiler_a);
    EXPECT_TRUE(removed);
    EXPECT_EQ(one.get(key_of(1), compiler_a), entry_of(1)) << when;
    std::filesystem::remove_all(folder_);
  }
  EXPECT_EQ(log_.text(), "");
}

TEST_F(StoreFaultTest, EntriesThatVanishWhileListedAreLeftOut) {
  for (int i = 0; i < 4; ++i) store().put(entry_of(i), compiler_a);
  test::FaultyFileSystem faulty;
  faulty.set_observer([&](std::string_view verb) {
    if (verb == "open") std::filesystem::remove(path_of(2));
  });
  const auto listed = store(faulty).list();
  EXPECT_LE(listed.size(), 4u);
  for (const auto& entry : listed) EXPECT_EQ(entry.problem, "") << entry.path;
}

TEST_F(StoreFaultTest, APowerCutAtAnyCallLeavesNothingOrAWholeEntry) {
  const int num_calls = num_calls_of_put();
  store().put(entry_of(1, "old"), compiler_a);
  const std::string old = test::read_file(path_of(1));
  for (int n = 1; n <= num_calls + 1; ++n) {
    test::write_file(path_of(1), old);
    test::FaultyFileSystem faulty;
    faulty.fail_from(n, EIO);  // the process is gone
    store(faulty).put(entry_of(1, "new"), compiler_a);
    faulty.cut_power();
    const auto entry = store().get(key_of(1), compiler_a);
    ASSERT_TRUE(entry) << n;
    EXPECT_TRUE(*entry == entry_of(1, "old") || *entry == entry_of(1, "new")) << n;
    if (n == num_calls + 1) {
      EXPECT_EQ(*entry, entry_of(1, "new")) << "a finished put survives";
    }
  }
}

// Killed for real: whatever the child had done, readers find nothing or a whole entry.
TEST_F(StoreFaultTest, AWriterKilledAtAnyCallLeavesNothingOrAWholeEntry) {
  const int num_calls = num_calls_of_put();
  for (int n = 1; n <= num_calls; ++n) {
    const pid_t child = ::fork();
    if (child == 0) {
      test::FaultyFileSystem faulty;
      int num_seen = 0;
      faulty.set_observer([&](std::string_view) {
        if (++num_seen == n) ::raise(SIGKILL);
      });
      store(faulty).put(entry_of(1), compiler_a);
      ::_exit(0);
    }
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    ASSERT_TRUE(WIFSIGNALED(status)) << n;
    is_stored_whole();
    store().put(entry_of(1), compiler_a);
    EXPECT_TRUE(is_stored_whole());
    std::filesystem::remove_all(folder_);
  }
}

TEST_F(StoreFaultTest, WithoutADescriptorTheCallerIsToldAndNotTheLog) {
  ASSERT_TRUE(store().put(entry_of(1), compiler_a));
  test::FaultyFileSystem faulty;
  DiskStore store = this->store(faulty);
  for (const char* verb : {"open", "list"}) {
    faulty.fail_verb(verb, EMFILE, 1);
    std::string refusal;
    const bool is_exact = std::string_view(verb) == "open";
    EXPECT_FALSE(store.get(key_of(1), is_exact ? compiler_a : "", {}, &refusal));
    EXPECT_NE(refusal.find(folder_), std::string::npos) << refusal;
    EXPECT_NE(refusal.find("Too many open files"), std::string::npos) << refusal;
    EXPECT_EQ(log_.text(), "");
    EXPECT_TRUE(store.get(key_of(1), compiler_a));
  }
  faulty.fail_verb("open", EMFILE, 1);
  EXPECT_FALSE(store.get(key_of(1), compiler_a));  // nobody asked
  EXPECT_EQ(log_.num_lines(), 1) << log_.text();
}

}  // namespace
}  // namespace rlk::cache
