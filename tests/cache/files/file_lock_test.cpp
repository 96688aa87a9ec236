// SPDX-License-Identifier: Apache-2.0
// Who excludes whom, and what ends a lock: its object, its process, never the child of a fork.
#include "cache/files/file_lock.hpp"

#include "tests/cache/store_fixture.hpp"
#include "tests/support/child_processes.hpp"

#include <spawn.h>
#include <sys/stat.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <memory>
#include <set>
#include <thread>

namespace rlk::cache {
namespace {

using test::kill_child;
using test::SharedMemory;
using test::start_child;
using test::wait_for_child;

class FileLockTest : public testing::Test {
 protected:
  std::unique_ptr<FileLock> lock_of(std::uint64_t byte) const {
    return std::make_unique<FileLock>(posix_file_system(), path_, Sharing::owner, byte);
  }

  bool is_free(std::uint64_t byte) const { return lock_of(byte)->try_lock() == 0; }

  // Whether the lock comes free at all: a process that was just killed may take its time.
  bool comes_free(std::uint64_t byte) const {
    for (int i = 0; i < 2000; ++i) {
      if (is_free(byte)) return true;
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return false;
  }

  test::TempDir temp_;
  std::string path_ = temp_ / ".lock";
};

TEST_F(FileLockTest, OneHoldsAByteAtATime) {
  auto first = lock_of(7);
  ASSERT_EQ(first->try_lock(), 0);
  EXPECT_EQ(first->try_lock(), 0) << "it is held already";
  EXPECT_FALSE(is_free(7)) << "by this process, through another open file";
  EXPECT_EQ(wait_for_child(start_child([&] { return !is_free(7); })), "passed");
  EXPECT_TRUE(is_free(8)) << "another key";
  EXPECT_TRUE(is_free(k_sweep_byte));
  first.reset();
  EXPECT_TRUE(is_free(7));
}

TEST_F(FileLockTest, ThreadsExcludeEachOther) {
  std::atomic<int> num_inside = 0, num_taken = 0;
  std::vector<std::jthread> threads(4);
  for (std::jthread& thread : threads) {
    thread = std::jthread([&] {
      for (int k = 0; k < 200; ++k) {
        auto lock = lock_of(7);
        if (lock->try_lock() != 0) continue;
        EXPECT_EQ(++num_inside, 1);
        ++num_taken;
        --num_inside;
      }
    });
  }
  threads.clear();
  EXPECT_GT(num_taken, 0);
  EXPECT_TRUE(is_free(7));
}

TEST_F(FileLockTest, TheFileStaysAndStaysEmpty) {
  ASSERT_TRUE(is_free(1));
  struct stat first{}, last{};
  ASSERT_EQ(::stat(path_.c_str(), &first), 0);
  for (std::uint64_t i = 0; i < 100; ++i) ASSERT_TRUE(is_free(byte_of_key(key_of(1).digest()) + i));
  ASSERT_EQ(::stat(path_.c_str(), &last), 0);
  EXPECT_EQ(first.st_ino, last.st_ino);
  EXPECT_EQ(last.st_size, 0);
}

TEST_F(FileLockTest, RightsDoNotDependOnTheUmask) {
  for (const auto& [sharing, mode] : {std::pair{Sharing::owner, 0600}, {Sharing::group, 0660}}) {
    for (const mode_t umask : {0, 022, 077}) {
      const mode_t before = ::umask(umask);
      FileLock lock(posix_file_system(), path_, sharing, 1);
      ::umask(before);
      EXPECT_EQ(lock.try_lock(), 0);
      EXPECT_EQ(mode_of(path_), static_cast<mode_t>(mode));
      std::filesystem::remove(path_);
    }
  }
}

TEST_F(FileLockTest, TheEndOfItsProcessFreesIt) {
  SharedMemory<std::atomic<bool>> held;
  for (const bool killed : {false, true}) {
    *held = false;
    const pid_t child = start_child([&] {
      auto lock = lock_of(7);
      *held = lock->try_lock() == 0;
      if (killed) ::pause();
      std::ignore = lock.release();  // as an _exit in the middle of a compile
      return held->load();
    });
    while (killed && !*held) std::this_thread::yield();
    if (killed) {
      EXPECT_FALSE(is_free(7));
    }
    EXPECT_EQ(killed ? kill_child(child) : wait_for_child(child), killed ? "signal 9" : "passed");
    EXPECT_TRUE(comes_free(7));
  }
}

// What is left of a lock is a file, and a file alone locks nothing.
TEST_F(FileLockTest, AStaleFileLocksNothing) {
  test::write_file(path_, "12345");
  EXPECT_TRUE(is_free(7));
}

// The child of a fork shares the open file: it would keep the lock of a parent that is gone.
TEST_F(FileLockTest, AForkedChildDoesNotKeepTheLockOfItsParent) {
  struct Family {
    std::atomic<bool> held = false;
    std::atomic<pid_t> grandchild = 0;
  };
  SharedMemory<Family> state;
  const pid_t child = start_child([&] {
    auto lock = lock_of(7);
    state->held = lock->try_lock() == 0;
    state->grandchild = start_child([] { return ::pause() == 0; });
    ::pause();
    return true;
  });
  while (state->grandchild == 0) std::this_thread::yield();
  EXPECT_TRUE(state->held);
  EXPECT_FALSE(is_free(7));
  EXPECT_EQ(kill_child(child), "signal 9");
  EXPECT_TRUE(comes_free(7));
  EXPECT_EQ(::kill(state->grandchild, SIGKILL), 0) << "it lived on all the time";
}

TEST_F(FileLockTest, AForkedChildDoesNotFreeTheLockOfItsParent) {
  auto lock = lock_of(7);
  ASSERT_EQ(lock->try_lock(), 0);
  const pid_t child = start_child([&] {
    const int error = lock->try_lock();
    lock.reset();
    return error == EBADF && !is_free(7);
  });
  EXPECT_EQ(wait_for_child(child), "passed");
  EXPECT_FALSE(is_free(7));
}

TEST_F(FileLockTest, AForkedChildTakesLocksOfItsOwn) {
  auto lock = lock_of(7);
  ASSERT_EQ(lock->try_lock(), 0);
  const pid_t child = start_child([&] {
    auto own = lock_of(8);
    const bool taken = own->try_lock() == 0;
    lock.reset();  // the number of its file may be the new one's by now
    return taken && !is_free(8) && !is_free(7);
  });
  EXPECT_EQ(wait_for_child(child), "passed");
  EXPECT_TRUE(is_free(8));
}

TEST_F(FileLockTest, AProgramThatIsStartedDoesNotKeepTheLock) {
  SharedMemory<std::atomic<pid_t>> program;
  const pid_t child = start_child([&] {
    auto lock = lock_of(7);
    if (lock->try_lock() != 0) return false;
    std::string name = "sleep", seconds = "100";
    char* arguments[] = {name.data(), seconds.data(), nullptr};
    pid_t started = 0;
    if (::posix_spawnp(&started, "sleep", nullptr, nullptr, arguments, environ) != 0) return false;
    *program = started;
    ::pause();
    return true;
  });
  while (*program == 0) std::this_thread::yield();
  EXPECT_EQ(kill_child(child), "signal 9");
  EXPECT_TRUE(comes_free(7));
  EXPECT_EQ(::kill(*program, SIGKILL), 0);
}

// Whatever other threads are at, the child has no copy of a lock file open.
TEST_F(FileLockTest, ForksInTheMiddleOfLockingLeaveNoCopies) {
  std::atomic<bool> done = false;
  std::vector<std::jthread> threads;
  for (std::uint64_t i = 1; i <= 3; ++i) {
    threads.emplace_back([&, i] {
      while (!done) EXPECT_TRUE(is_free(i));
    });
  }
  for (int i = 0; i < 100; ++i) {
    const pid_t child = start_child([&] {
      for (const auto& item : std::filesystem::directory_iterator("/proc/self/fd")) {
        std::error_code ignored;
        if (std::filesystem::read_symlink(item.path(), ignored) == path_) return false;
      }
      return is_free(99);  // nor a mutex that nobody unlocks
    });
    ASSERT_EQ(wait_for_child(child), "passed") << i;
  }
  done = true;
}

TEST_F(FileLockTest, OnlyARegularFileWillDo) {
  std::filesystem::create_symlink(temp_ / "target", path_);
  EXPECT_EQ(lock_of(1)->error(), ELOOP);
  EXPECT_EQ(lock_of(1)->try_lock(), ELOOP);
  EXPECT_FALSE(std::filesystem::exists(temp_ / "target"));
  std::filesystem::remove(path_);
  std::filesystem::create_directory(path_);
  EXPECT_EQ(lock_of(1)->error(), EISDIR);
  std::filesystem::remove(path_);
  ASSERT_EQ(::mkfifo(path_.c_str(), 0600), 0);
  EXPECT_EQ(lock_of(1)->error(), EINVAL);
}

TEST(ByteOfKey, KeysHaveBytesOfTheirOwn) {
  std::set<std::uint64_t> bytes = {k_sweep_byte};
  for (int i = 0; i < 1000; ++i) bytes.insert(byte_of_key(key_of(i).digest()));
  EXPECT_EQ(bytes.size(), 1001u);
  EXPECT_EQ(byte_of_key(std::string(32, '0')), 1u);
  EXPECT_EQ(byte_of_key(std::string(32, 'f')), std::uint64_t{1} << 60);
}

}  // namespace
}  // namespace rlk::cache
