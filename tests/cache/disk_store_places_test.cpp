// SPDX-License-Identifier: Apache-2.0
// Real file systems and real users: memory, overlays, read-only mounts, a group that shares.
#include "cache/disk_store.hpp"
#include "tests/cache/store_fixture.hpp"
#include "tests/support/child_processes.hpp"
#include "tests/support/forwarding_file_system.hpp"

#include <grp.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <functional>
#include <thread>

namespace rlk::cache {
namespace {

using std::chrono::milliseconds;

// A child with mounts of its own, which vanish with it.
bool enter_own_mounts() {
  return ::unshare(CLONE_NEWNS) == 0 &&
         ::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0;
}

class MountTest : public StoreTest {
 protected:
  void SetUp() override {
    const pid_t child = test::start_child([&] { return enter_own_mounts() && mount_memory(); });
    if (test::wait_for_child(child) != "passed") GTEST_SKIP() << "mounting needs more rights";
  }

  bool mount_memory() const {
    std::filesystem::create_directories(temp_ / "mount");
    return ::mount("none", (temp_ / "mount").c_str(), "tmpfs", 0, nullptr) == 0;
  }

  bool mount_overlay() const {
    for (const char* name : {"mount/lower", "mount/upper", "mount/work", "overlay"}) {
      std::filesystem::create_directories(temp_ / name);
    }
    test::write_file(temp_ / "mount/lower/.lock", "");  // as an image that was used once has it
    const std::string options = "lowerdir=" + (temp_ / "mount/lower") +
                                ",upperdir=" + (temp_ / "mount/upper") +
                                ",workdir=" + (temp_ / "mount/work");
    return ::mount("none", (temp_ / "overlay").c_str(), "overlay", 0, options.c_str()) == 0 &&
           ::chmod((temp_ / "overlay").c_str(), 0700) == 0;
  }

  // A store's whole life in a folder. The reason, if something is not as it should be.
  std::string life_in(const std::string& folder) const {
    DiskStore one({.read_write = folder});
    DiskStore two({.read_write = folder, .turn_timeout = milliseconds(30)});
    {
      const Turn turn = one.take_turn(key_of(1), compiler_a);
      if (turn.outcome != TurnOutcome::compile || !turn.lock) return "no turn";
      if (test::wait_for_child(test::start_child([&] {
            return two.take_turn(key_of(1), compiler_a).outcome == TurnOutcome::timed_out;
          })) != "passed") {
        return "two turns at once";
      }
      one.put(entry_of(1), compiler_a);
    }
    if (two.take_turn(key_of(1), compiler_a).entry != entry_of(1)) return "not stored";
    if (one.list().size() != 1) return "not listed";
    if (one.prune({0, 0, {}}).num_removed != 1) return "not removed";
    if (one.get(key_of(1), compiler_a)) return "removed and got";
    return log_.text();
  }
};

TEST_F(MountTest, AFolderInMemory) {
  EXPECT_EQ(test::wait_for_child(test::start_child([&] {
              return enter_own_mounts() && mount_memory() &&
                     life_in(temp_ / "mount/cache").empty() &&
                     std::filesystem::exists(temp_ / "mount/cache/.lock");
            })),
            "passed");
}

TEST_F(MountTest, AFolderInAContainersOverlay) {
  EXPECT_EQ(test::wait_for_child(test::start_child([&] {
              if (!enter_own_mounts() || !mount_memory() || !mount_overlay()) return false;
              const std::string problem = life_in(temp_ / "overlay");
              if (!problem.empty()) std::fprintf(stderr, "overlay: %s\n", problem.c_str());
              return problem.empty() && std::filesystem::exists(temp_ / "mount/upper/.lock");
            })),
            "passed");
}

// Hits, no stamp, one warning for lock and put.
TEST_F(MountTest, AReadOnlyMount) {
  EXPECT_EQ(test::wait_for_child(test::start_child([&] {
              if (!enter_own_mounts() || !mount_memory()) return false;
              const std::string folder = temp_ / "mount/cache";
              DiskStore({.read_write = folder}).put(entry_of(1), compiler_a);
              set_age(folder + '/' + entry_file_name(key_of(1).digest(), compiler_a), 100000);
              if (::mount("none", (temp_ / "mount").c_str(), nullptr, MS_REMOUNT | MS_RDONLY,
                          nullptr) != 0) {
                return false;
              }
              DiskStore one({.read_write = folder});
              bool passed = one.get(key_of(1), compiler_a) == entry_of(1);
              for (int i = 2; i < 4; ++i) {
                const Turn turn = one.take_turn(key_of(i), compiler_a);
                passed = passed && turn.outcome == TurnOutcome::compile && !turn.lock;
                one.put(entry_of(i), compiler_a);
              }
              return passed && log_.num_lines() == 1 && log_.contains("Read-only file system");
            })),
            "passed");
}

constexpr gid_t k_team = 54321;

// A child that runs as a user of one group.
pid_t start_as(uid_t user, gid_t group, const std::function<bool()>& body) {
  return test::start_child([&] {
    return ::setgroups(1, &group) == 0 && ::setgid(group) == 0 && ::setuid(user) == 0 && body();
  });
}

std::string as_user(uid_t user, gid_t group, const std::function<bool()>& body) {
  return test::wait_for_child(start_as(user, group, body));
}

class GroupTest : public StoreTest {
 protected:
  void SetUp() override {
    if (::geteuid() != 0) GTEST_SKIP() << "running as other users needs root";
    // As an administrator sets it up: the team's folder, new files belong to the team.
    const std::string team = temp_ / "team";
    std::filesystem::create_directory(team);
    ASSERT_EQ(::chown(team.c_str(), 0, k_team), 0);
    ASSERT_EQ(::chmod(team.c_str(), 02770), 0);
    ASSERT_EQ(::chmod(temp_.path().c_str(), 0755), 0);
    folder_ = team + "/cache";
  }

  DiskStore shared() const {
    return DiskStore({.read_write = folder_,
                      .sharing = Sharing::group,
                      .budget_bytes = 1,
                      .turn_timeout = milliseconds(30)});
  }
};

TEST_F(GroupTest, MembersShareEntriesLockAndSweep) {
  // An umask that would shut the team out.
  EXPECT_EQ(as_user(1001, k_team,
                    [&] {
                      ::umask(077);
                      DiskStore one = shared();
                      const bool is_first =
                          one.take_turn(key_of(1), compiler_a).outcome == TurnOutcome::compile;
                      one.put(entry_of(1), compiler_a);
                      one.put(entry_of(2), compiler_a);
                      return is_first && log_.text().empty();
                    }),
            "passed");
  EXPECT_EQ(mode_of(folder_), 02770u);
  EXPECT_EQ(mode_of(folder_ + "/.lock"), 0660u);
  set_age(folder_ + "/.swept", 4000);
  set_age(path_of(2), 4000);
  EXPECT_EQ(as_user(1002, k_team,
                    [&] {
                      ::umask(077);
                      DiskStore two = shared();
                      bool passed = two.get(key_of(2), compiler_a) == entry_of(2);
                      passed = passed && two.take_turn(key_of(3), compiler_a).lock;
                      two.put(entry_of(2, "replaced"), compiler_a);  // and sweeps all
                      return passed && log_.text().empty();
                    }),
            "passed");
  EXPECT_TRUE(log_.text().empty()) << log_.text();
  EXPECT_TRUE(names_in(folder_).empty());
}

TEST_F(GroupTest, MembersExcludeEachOther) {
  test::SharedMemory<std::atomic<bool>> held;
  const pid_t holder = start_as(1001, k_team, [&] {
    const Turn turn = shared().take_turn(key_of(1), compiler_a);
    *held = true;
    return turn.lock && ::pause() == 0;
  });
  while (!*held) std::this_thread::yield();
  EXPECT_EQ(as_user(1002, k_team,
                    [&] {
                      return shared().take_turn(key_of(1), compiler_a).outcome ==
                             TurnOutcome::timed_out;
                    }),
            "passed");
  EXPECT_EQ(test::kill_child(holder), "signal 9");
}

TEST_F(GroupTest, StrangersAreRefusedAndRefuse) {
  // A member without RLK_CACHE_SHARED does not take what others may have written.
  EXPECT_EQ(as_user(1001, k_team,
                    [&] {
                      shared().put(entry_of(1), compiler_a);
                      DiskStore wary({.read_write = folder_});
                      return !wary.get(key_of(1), compiler_a) && log_.contains("folder refused");
                    }),
            "passed");
  ASSERT_EQ(::chmod((temp_ / "team").c_str(), 0777), 0);
  ASSERT_EQ(::chmod(folder_.c_str(), 0777), 0);
  EXPECT_EQ(as_user(1003, 999,
                    [&] {
                      DiskStore stranger = shared();
                      stranger.put(entry_of(3), compiler_a);
                      return !stranger.get(key_of(1), compiler_a) &&
                             log_.contains("expected owner 1003");
                    }),
            "passed");
}

// A kubelet's work at each mount: the group, its right to write, setgid on folders.
void mount_with_fs_group(const std::string& folder, gid_t group) {
  const auto give = [&](const std::string& path, mode_t added) {
    ASSERT_EQ(::lchown(path.c_str(), static_cast<uid_t>(-1), group), 0);
    ASSERT_EQ(::chmod(path.c_str(), mode_of(path) | added), 0);
  };
  give(folder, 02770);
  for (const auto& file : std::filesystem::recursive_directory_iterator(folder)) {
    give(file.path(), file.is_directory() ? 02770 : 0660);
  }
}

TEST_F(GroupTest, APodHitsAfterTheNextMount) {
  for (const auto& [user, group, sharing] :
       {std::tuple{uid_t{1001}, k_team, Sharing::group}, {k_team, k_team, Sharing::owner}}) {
    std::filesystem::remove_all(folder_);
    mount_with_fs_group(temp_ / "team", k_team);
    const auto pod = [&](int number, bool is_there) {
      return as_user(user, group, [&] {
        DiskStore one({.read_write = folder_, .sharing = sharing});
        const bool hits = one.get(key_of(1), compiler_a).has_value();
        one.put(entry_of(number), compiler_a);
        return hits == is_there && one.get(key_of(number), compiler_a) && log_.text().empty();
      });
    };
    EXPECT_EQ(pod(1, false), "passed");
    mount_with_fs_group(temp_ / "team", k_team);
    EXPECT_EQ(pod(2, true), "passed") << user;
  }
}

// Users without a common group, in a folder that its owner has opened to all.
TEST_F(GroupTest, AllWhoMayWriteShareWhereTheOwnerSaysSo) {
  std::filesystem::create_directory(folder_ = temp_ / "open");
  ASSERT_EQ(::chmod(folder_.c_str(), 0777), 0);
  const auto passes = [&](uid_t user, int number) {
    return as_user(user, user, [&] {
      ::umask(077);
      DiskStore one({.read_write = folder_, .sharing = Sharing::all});
      const Turn turn = one.take_turn(key_of(number), compiler_a);
      one.put(entry_of(number), compiler_a);
      return turn.lock && one.get(key_of(1), compiler_a) && log_.text().empty();
    });
  };
  EXPECT_EQ(passes(1001, 1), "passed");
  EXPECT_EQ(passes(1002, 2), "passed");
  DiskStore wary({.read_write = folder_});
  EXPECT_FALSE(wary.get(key_of(1), compiler_a));
  EXPECT_TRUE(log_.contains("RLK_CACHE_SHARED=all")) << log_.text();
}

// As a mount with fixed modes shows all that lies in it.
class FixedModes : public test::ForwardingFileSystem {
 public:
  Outcome<FileStat> stat_open(int file) override {
    return shown(ForwardingFileSystem::stat_open(file));
  }
  Outcome<FileStat> stat(const std::string& path, Links links) override {
    return shown(ForwardingFileSystem::stat(path, links));
  }
  int chmod_open(int, mode_t) override { return EPERM; }
  int chmod(const std::string&, mode_t) override { return EPERM; }

 private:
  static Outcome<FileStat> shown(Outcome<FileStat> found) {
    found.value.mode = 0777;
    return found;
  }
};

TEST_F(StoreTest, AMountThatIgnoresChmodIsUsedWhereTheOwnerSaysSo) {
  FixedModes files;
  DiskStore wary({.read_write = folder_}, files);
  EXPECT_FALSE(wary.put(entry_of(1), compiler_a));
  EXPECT_TRUE(log_.contains("RLK_CACHE_SHARED=all")) << log_.text();
  log_.clear();
  const StoreOptions options{.read_write = folder_, .sharing = Sharing::all};
  EXPECT_TRUE(DiskStore(options, files).put(entry_of(1), compiler_a));
  EXPECT_TRUE(DiskStore(options, files).get(key_of(1), compiler_a));
  EXPECT_EQ(log_.text(), "");
}

}  // namespace
}  // namespace rlk::cache
