// SPDX-License-Identifier: Apache-2.0
// What first calls record for `rlk-jit stats`, and that later calls record nothing.
#include "cache/usage_log.hpp"
#include "tests/jit/dispatcher_cuda_fixture.hpp"

#include <map>

namespace rlk::jit {
namespace {

using namespace std::chrono_literals;
using test::fake_cuda_call;

class TimedCompiler final : public test::FakeCompiler {
 public:
  CompiledCode compile(const CompileRequest& request) override {
    CompiledCode compiled = FakeCompiler::compile(request);
    compiled.stats.compile_ms = 186.6;
    return compiled;
  }
};

class DispatcherUsageTest : public DispatcherCudaTest {
 protected:
  using Counts = std::map<std::string, std::uint64_t>;  // by "event kernel"

  DispatcherUsageTest() { compiler_ = std::make_shared<TimedCompiler>(); }

  std::vector<cache::Usage> usage() const {
    return cache::UsageLog({.read_write = folder_ / "cache"}).read();
  }
  Counts counts() const {
    Counts found;
    for (const auto& one : usage())
      found[std::string(name(one.event)) + ' ' + one.kernel] = one.count;
    return found;
  }
  void make_folder() const {
    std::filesystem::create_directory(folder_ / "cache");
    std::filesystem::permissions(folder_ / "cache", std::filesystem::perms::owner_all);
  }
  // Three calls in a process of their own.
  void run_process(Policy policy = Policy::sync) {
    auto dispatcher = make(config(policy));
    for (int i = 0; i < 3; ++i) dispatcher->run(fake_cuda_call(7));
    EXPECT_TRUE(dispatcher->wait_for(10s));
  }
};

TEST_F(DispatcherUsageTest, OneCompilesAndTheOthersHit) {
  for (int i = 0; i < 3; ++i) run_process();
  EXPECT_EQ(counts(), (Counts{{"compiled linear_logp.fwd[size=7]@sm_90a", 1},
                              {"hit linear_logp.fwd[size=7]@sm_90a", 2}}));
  EXPECT_EQ(usage().at(1).event, cache::UsageEvent::compiled);
  EXPECT_EQ(usage().at(1).ms, 187u);
  EXPECT_GT(usage().at(1).time_s, std::time(nullptr) - 100);
}

TEST_F(DispatcherUsageTest, AFailedCompileAndTheGenericInItsPlace) {
  make_builtin_layer(Target::sm_90a);
  compiler_->fails = true;
  run_process();
  EXPECT_EQ(counts(), (Counts{{std::string("failed ") + k_specialized, 1},
                              {std::string("fallback ") + k_specialized, 1},
                              {std::string("hit ") + k_generic, 1}}));
}

TEST_F(DispatcherUsageTest, InTheBackgroundBothAreTold) {
  make_builtin_layer(Target::sm_90a);
  make_folder();
  run_process(Policy::async);
  EXPECT_EQ(counts(), (Counts{{std::string("compiled ") + k_specialized, 1},
                              {std::string("fallback ") + k_specialized, 1},
                              {std::string("hit ") + k_generic, 1}}));
}

// Where nothing is compiled no folder is made; in one that is there fallbacks are counted.
TEST_F(DispatcherUsageTest, WithPolicyOffAFolderThatIsThereIsWrittenTo) {
  make_builtin_layer(Target::sm_90a);
  run_process(Policy::off);
  EXPECT_TRUE(cache_is_empty());
  make_folder();
  for (int i = 0; i < 2; ++i) run_process(Policy::off);
  EXPECT_EQ(counts(), (Counts{{std::string("fallback ") + k_specialized, 2},
                              {std::string("hit ") + k_generic, 2}}));
}

TEST_F(DispatcherUsageTest, AnotherFolderHasAnotherRecord) {
  auto dispatcher = make();
  dispatcher->run(fake_cuda_call(7));
  Config other = config();
  other.settings.cache_dir = folder_ / "other";
  dispatcher->configure(other);
  dispatcher->run(fake_cuda_call(8));
  EXPECT_EQ(usage().size(), 1u);
  EXPECT_EQ(cache::UsageLog({.read_write = folder_ / "other"}).read().size(), 1u);
}

}  // namespace
}  // namespace rlk::jit
