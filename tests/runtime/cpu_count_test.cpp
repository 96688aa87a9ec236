// SPDX-License-Identifier: Apache-2.0
// Quotas as containers and services show them, in a made-up file system.
#include "runtime/cpu_count.hpp"

#include <gtest/gtest.h>
#include <sched.h>
#include <stdlib.h>

#include <fstream>
#include <string>

namespace rlk::runtime {
namespace {

namespace fs = std::filesystem;

class CgroupTest : public testing::Test {
 protected:
  CgroupTest() {
    std::string pattern = testing::TempDir() + "cgroupXXXXXX";
    root_ = mkdtemp(pattern.data());
  }
  ~CgroupTest() override { fs::remove_all(root_); }

  void write(const std::string& path, const std::string& text) {
    fs::create_directories((root_ / path).parent_path());
    std::ofstream(root_ / path) << text;
  }

  fs::path root_;
};

TEST_F(CgroupTest, NoneAtAll) { EXPECT_EQ(cgroup_cpus(root_), std::nullopt); }

TEST_F(CgroupTest, Version2RoundsUp) {
  write("proc/self/cgroup", "0::/job\n");
  write("sys/fs/cgroup/job/cpu.max", "250000 100000\n");
  EXPECT_EQ(cgroup_cpus(root_), 3);
}

TEST_F(CgroupTest, Version2WithoutQuota) {
  write("proc/self/cgroup", "0::/job\n");
  write("sys/fs/cgroup/job/cpu.max", "max 100000\n");
  EXPECT_EQ(cgroup_cpus(root_), std::nullopt);
}

TEST_F(CgroupTest, Version2TakesTheLeastOfTheParents) {
  write("proc/self/cgroup", "0::/slice/job\n");
  write("sys/fs/cgroup/slice/cpu.max", "150000 100000\n");
  write("sys/fs/cgroup/slice/job/cpu.max", "800000 100000\n");
  EXPECT_EQ(cgroup_cpus(root_), 2);
}

TEST_F(CgroupTest, PathThatExistsOnlyOutsideTheContainer) {
  write("proc/self/cgroup", "0::/docker/0123\n");
  write("sys/fs/cgroup/cpu.max", "50000 100000\n");
  EXPECT_EQ(cgroup_cpus(root_), 1);
}

TEST_F(CgroupTest, Version1) {
  write("proc/self/cgroup", "5:memory:/job\n4:cpu,cpuacct:/job\n");
  write("sys/fs/cgroup/cpu,cpuacct/job/cpu.cfs_quota_us", "400000\n");
  write("sys/fs/cgroup/cpu,cpuacct/job/cpu.cfs_period_us", "100000\n");
  EXPECT_EQ(cgroup_cpus(root_), 4);
}

TEST_F(CgroupTest, Version1WithoutQuota) {
  write("proc/self/cgroup", "4:cpu:/job\n");
  write("sys/fs/cgroup/cpu/job/cpu.cfs_quota_us", "-1\n");
  write("sys/fs/cgroup/cpu/job/cpu.cfs_period_us", "100000\n");
  EXPECT_EQ(cgroup_cpus(root_), std::nullopt);
}

TEST_F(CgroupTest, NonsenseIsPassedOver) {
  write("proc/self/cgroup", "\n:\nabc\n0::/job\n");
  write("sys/fs/cgroup/job/cpu.max", "100000 0\n");
  EXPECT_EQ(cgroup_cpus(root_), std::nullopt);
}

TEST(CpuCountTest, OmpNumThreads) {
  EXPECT_EQ(parse_omp_num_threads("4"), 4);
  EXPECT_EQ(parse_omp_num_threads(" 4,2"), 4);
  for (const char* bad : {"", "0", "-1", "four", "4x", "99999999999"}) {
    EXPECT_EQ(parse_omp_num_threads(bad), std::nullopt) << bad;
  }
}

TEST(CpuCountTest, AffinityIsOfThisThread) {
  cpu_set_t before;
  ASSERT_EQ(sched_getaffinity(0, sizeof before, &before), 0);
  cpu_set_t one;
  CPU_ZERO(&one);
  for (int cpu = 0; CPU_COUNT(&one) == 0; ++cpu) {
    if (CPU_ISSET(cpu, &before)) CPU_SET(cpu, &one);
  }
  ASSERT_EQ(sched_setaffinity(0, sizeof one, &one), 0);
  EXPECT_EQ(affinity_cpus(), 1);
  EXPECT_EQ(default_num_threads(), 1);
  ASSERT_EQ(sched_setaffinity(0, sizeof before, &before), 0);
  EXPECT_EQ(affinity_cpus(), CPU_COUNT(&before));
}

}  // namespace
}  // namespace rlk::runtime
