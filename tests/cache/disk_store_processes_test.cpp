// SPDX-License-Identifier: Apache-2.0
// Many processes, one cold key, a compiler that takes its time: one compiles, all get the entry,
// also where the one is killed at some moment.
#include "cache/disk_store.hpp"
#include "tests/cache/store_fixture.hpp"
#include "tests/support/child_processes.hpp"
#include "tests/support/forwarding_file_system.hpp"
#include "tests/support/long_tests.hpp"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <csignal>
#include <functional>
#include <random>
#include <thread>

namespace rlk::cache {
namespace {

using std::chrono::milliseconds;

constexpr int k_num_processes = 64;
constexpr milliseconds k_compile_time{20};

struct State {
  std::atomic<int> num_started = 0;  // compiles
  std::atomic<int> num_finished = 0;
  std::atomic<pid_t> holder = 0;  // the first to compile
};

// Kills its own process at the n-th call from now on.
class KillingFileSystem final : public test::ForwardingFileSystem {
 public:
  void kill_at(int call) { calls_left_ = call; }

  Outcome<int> open(const std::string& path, int flags, mode_t mode) override {
    count();
    return ForwardingFileSystem::open(path, flags, mode);
  }
  Outcome<std::size_t> write(int file, const void* from, std::size_t num_bytes) override {
    count();
    // In small pieces, so that a kill meets a file that is half there.
    return ForwardingFileSystem::write(file, from, std::min<std::size_t>(num_bytes, 1000));
  }
  int fsync(int file) override {
    count();
    return ForwardingFileSystem::fsync(file);
  }
  int close(int file) override {
    count();
    return ForwardingFileSystem::close(file);
  }
  Outcome<FileStat> stat(const std::string& path, Links links) override {
    count();
    return ForwardingFileSystem::stat(path, links);
  }
  int rename(const std::string& from, const std::string& to) override {
    count();
    return ForwardingFileSystem::rename(from, to);
  }
  int unlink(const std::string& path) override {
    count();
    return ForwardingFileSystem::unlink(path);
  }

 private:
  void count() {
    if (calls_left_ == 1) ::raise(SIGKILL);
    calls_left_ = std::max(calls_left_ - 1, 0);
  }

  int calls_left_ = 0;
};

// When the first to compile is killed: that long after it began, or at that call of its put.
struct Kill {
  std::chrono::microseconds after{0};
  int at_call = 0;
};

class ProcessesTest : public StoreTest {
 protected:
  // What the dispatcher does for a kernel, with a compiler that sleeps.
  bool get_or_compile(int number, State& state, const Kill& kill = {}) const {
    KillingFileSystem files;
    DiskStore one({.read_write = folder_}, files);
    if (auto entry = one.get(key_of(number), compiler_a)) return *entry == entry_of(number);
    const Turn turn = one.take_turn(key_of(number), compiler_a);
    if (turn.outcome == TurnOutcome::stored) return *turn.entry == entry_of(number);
    if (turn.outcome != TurnOutcome::compile || !turn.lock) return false;
    pid_t nobody = 0;
    const bool is_first = state.holder.compare_exchange_strong(nobody, ::getpid());
    ++state.num_started;
    if (is_first && kill.after.count() > 0) {
      std::thread([after = kill.after] {
        std::this_thread::sleep_for(after);
        ::raise(SIGKILL);
      }).detach();
    }
    std::this_thread::sleep_for(k_compile_time);
    if (is_first) files.kill_at(kill.at_call);
    one.put(entry_of(number), compiler_a);
    files.kill_at(0);
    ++state.num_finished;
    const auto stored = one.get(key_of(number), compiler_a);
    return stored && *stored == entry_of(number) && log_.text().empty();
  }

  // As many children as `count`; the numbers of their processes.
  static std::vector<pid_t> start_children(int count, const std::function<bool(int)>& body) {
    std::vector<pid_t> children(static_cast<std::size_t>(count));
    for (int i = 0; i < count; ++i) {
      children[static_cast<std::size_t>(i)] = test::start_child([&] { return body(i); });
    }
    return children;
  }

  // No matter how it ended: one whole entry, and after a sweep no more.
  void expect_one_entry() {
    EXPECT_EQ(store().get(key_of(1), compiler_a), entry_of(1));
    for (const auto& name : names_in(folder_)) set_age(folder_ + '/' + name, 4000);
    store().prune({});
    EXPECT_EQ(names_in(folder_).size(), 1u);
  }
};

TEST_F(ProcessesTest, OneOf64Compiles) {
  test::SharedMemory<State> state;
  const auto children =
      start_children(k_num_processes, [&](int) { return get_or_compile(1, *state); });
  for (const pid_t child : children) EXPECT_EQ(test::wait_for_child(child), "passed");
  EXPECT_EQ(state->num_started, 1);
  expect_one_entry();
}

// Ranks that start together want the same kernels in about the same order.
TEST_F(ProcessesTest, EightWithManyKeysCompileEachOnce) {
  constexpr int k_num_keys = 12;
  test::SharedMemory<State> state;
  const auto children = start_children(8, [&](int i) {
    bool passed = true;
    for (int key = 0; key < k_num_keys; ++key) {
      passed = get_or_compile((key + i) % k_num_keys, *state) && passed;
    }
    return passed;
  });
  for (const pid_t child : children) EXPECT_EQ(test::wait_for_child(child), "passed");
  EXPECT_EQ(state->num_started, k_num_keys);
  EXPECT_EQ(names_in(folder_).size(), static_cast<std::size_t>(k_num_keys));
}

// At a random moment of the compile or soon after it, or at a random call of the put.
TEST_F(ProcessesTest, AnotherTakesOverFromOneThatIsKilled) {
  std::mt19937 random(7);
  const int num_rounds = test::amount(20, 200);
  int num_killed = 0;
  for (int round = 0; round < num_rounds; ++round) {
    SCOPED_TRACE(round);
    Kill kill;
    if (round % 2 == 0) {
      kill.after = std::chrono::microseconds(1 + random() % 30000);
    } else {
      kill.at_call = static_cast<int>(1 + random() % 16);
    }
    test::SharedMemory<State> state;
    const auto children =
        start_children(k_num_processes, [&](int) { return get_or_compile(1, *state, kill); });
    int num_killed_now = 0;
    for (const pid_t child : children) {
      const std::string end = test::wait_for_child(child);
      if (child == state->holder && end == "signal 9") {
        ++num_killed_now;
      } else {
        EXPECT_EQ(end, "passed");
      }
    }
    // A kill before the rename costs one compile more, after it none.
    EXPECT_LE(state->num_started, 1 + num_killed_now);
    EXPECT_GE(state->num_finished, state->num_started - num_killed_now);
    num_killed += num_killed_now;
    expect_one_entry();
    std::filesystem::remove_all(folder_);
  }
  EXPECT_GE(num_killed, num_rounds / 2) << "a put has more calls than 16";
}

// Killed for sure in the middle of the compile: for sure one more.
TEST_F(ProcessesTest, AKillInTheMiddleOfACompileCostsOneCompile) {
  test::SharedMemory<State> state;
  const pid_t holder = test::start_child([&] {
    const Turn turn = store().take_turn(key_of(1), compiler_a);
    state->holder = ::getpid();
    ++state->num_started;
    return ::pause() == 0;
  });
  while (state->holder == 0) std::this_thread::yield();
  const auto children =
      start_children(k_num_processes, [&](int) { return get_or_compile(1, *state); });
  std::this_thread::sleep_for(milliseconds(50));
  EXPECT_EQ(state->num_started, 1);
  EXPECT_EQ(test::kill_child(holder), "signal 9");
  for (const pid_t child : children) EXPECT_EQ(test::wait_for_child(child), "passed");
  EXPECT_EQ(state->num_started, 2);
  EXPECT_EQ(state->num_finished, 1);
  expect_one_entry();
}

}  // namespace
}  // namespace rlk::cache
