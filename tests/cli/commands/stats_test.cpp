// SPDX-License-Identifier: Apache-2.0
// stats: the table by kernel, the totals, and what is said where nothing is recorded.
#include "cache/usage_log.hpp"
#include "tests/cli/cli_fixture.hpp"

#include <sys/stat.h>

namespace rlk::cli {
namespace {

using cache::UsageEvent;

class StatsTest : public CliTest {
 protected:
  void record(UsageEvent event, const std::string& kernel, std::uint64_t count = 1,
              std::uint64_t ms = 0) const {
    cache::UsageLog({.read_write = folder_})
        .record({event, kernel, count, ms, std::time(nullptr) - 7200});
  }
  void record_some() const {
    put(folder_, "a.fwd");
    record(UsageEvent::compiled, "a.fwd", 2, 2600);
    record(UsageEvent::hit, "a.fwd", 5);
    record(UsageEvent::hit, "a.fwd");
    record(UsageEvent::failed, "b.bwd");
    record(UsageEvent::fallback, "b.bwd", 3);
  }
};

TEST_F(StatsTest, AKernelARowAndTotalsBelow) {
  record_some();
  const Ran ran = run({"stats"});
  EXPECT_EQ(ran.code, 0) << ran.err;
  const auto lines = lines_of(ran.out);
  ASSERT_EQ(lines.size(), 7u) << ran.out;
  EXPECT_EQ(lines[0], "NAME   HITS  COMPILES  FAILED  FALLBACKS  COMPILE  LAST USED");
  EXPECT_EQ(lines[1], "a.fwd     6         2       0          0    2.6 s         2h");
  EXPECT_EQ(lines[2], "b.bwd     0         0       1          3        -         2h");
  EXPECT_EQ(lines[3], "");
  EXPECT_EQ(lines[4], "hit rate  50.0 % (6 of 12)") << "fallbacks are none";
  EXPECT_EQ(lines[5], "compiles  2, 2.6 s");
  EXPECT_TRUE(lines[6].starts_with("cache     1 entry, 5.")) << lines[6];
  EXPECT_TRUE(lines[6].ends_with(" KiB of 1.0 GiB")) << lines[6];
}

TEST_F(StatsTest, AsJson) {
  record_some();
  const auto told = run_json({"stats"});
  ASSERT_EQ(told["kernels"].size(), 2u);
  EXPECT_EQ(told["kernels"][0]["name"], "a.fwd");
  EXPECT_EQ(told["kernels"][0]["hits"], 6);
  EXPECT_EQ(told["kernels"][0]["compiles"], 2);
  EXPECT_EQ(told["kernels"][0]["compile_ms"], 2600);
  EXPECT_LE(told["kernels"][0]["last_used"], std::time(nullptr) - 7200);
  EXPECT_EQ(told["kernels"][1]["failed"], 1);
  EXPECT_EQ(told["kernels"][1]["fallbacks"], 3);
  EXPECT_EQ(told["total"]["hits"], 6);
  EXPECT_EQ(told["hit_rate"], 0.5);
  EXPECT_EQ(told["cache"]["folder"], folder_);
  EXPECT_EQ(told["cache"]["entries"], 1);
  EXPECT_GT(told["cache"]["bytes"], 5000);
  EXPECT_EQ(told["cache"]["budget_bytes"], 1 << 30);
}

// A job that ran nothing else has not found what it asked for.
TEST_F(StatsTest, LoadsOfGenericKernelsAreNoHits) {
  put(folder_, "toy.fwd[x=bf16 generic]@sm_90a");
  record(UsageEvent::hit, "toy.fwd[x=bf16 generic]@sm_90a", 4);
  EXPECT_NE(run({"stats"}).out.find("hit rate  - (0 of 0)"), std::string::npos);
  EXPECT_TRUE(run_json({"stats"})["hit_rate"].is_null());
  record(UsageEvent::fallback, "toy.fwd[x=bf16 V=10]@sm_90a", 3);
  EXPECT_NE(run({"stats"}).out.find("hit rate  0.0 % (0 of 3)"), std::string::npos);
  record(UsageEvent::hit, "toy.fwd[x=bf16 V=10]@sm_90a");
  EXPECT_NE(run({"stats"}).out.find("hit rate  25.0 % (1 of 4)"), std::string::npos);
  EXPECT_EQ(run_json({"stats"})["total"]["hits"], 5) << "the counts are of all";
}

TEST_F(StatsTest, APartOfTheNameChooses) {
  record_some();
  const auto told = run_json({"stats", "bwd"});
  ASSERT_EQ(told["kernels"].size(), 1u);
  EXPECT_EQ(told["total"]["hits"], 0);
  EXPECT_EQ(told["total"]["failed"], 1);
  const Ran none = run({"stats", "c.f\x1b"});
  EXPECT_EQ(none.code, 0);
  EXPECT_TRUE(none.out.starts_with("nothing recorded of \"c.f\\x1b\"\n")) << none.out;
}

TEST_F(StatsTest, WhereNothingIsRecordedItSaysSo) {
  const Ran ran = run({"stats"});
  EXPECT_EQ(ran.code, 0);
  EXPECT_EQ(lines_of(ran.out)[0], "nothing recorded in " + folder_ + "/.usage");
  EXPECT_EQ(lines_of(ran.out)[1], "hit rate  - (0 of 0)");
  EXPECT_FALSE(std::filesystem::exists(folder_)) << "it is a look";
  const auto told = run_json({"stats"});
  EXPECT_TRUE(told["kernels"].empty());
  EXPECT_TRUE(told["total"]["last_used"].is_null());
}

TEST_F(StatsTest, ARefusedFolderTellsNothing) {
  record_some();
  ASSERT_EQ(::chmod(folder_.c_str(), 0777), 0);
  EXPECT_TRUE(run_json({"stats"})["kernels"].empty());
}

TEST_F(StatsTest, NoLimitIsTold) {
  record_some();
  ::setenv("RLK_CACHE_SIZE", "0", 1);
  const Ran ran = run({"stats"});
  ::unsetenv("RLK_CACHE_SIZE");
  EXPECT_NE(ran.out.find("of no limit\n"), std::string::npos) << ran.out;
}

}  // namespace
}  // namespace rlk::cli
