// SPDX-License-Identifier: Apache-2.0
// doctor --strict: what must be there is, and the driver takes it.
#include "cli/doctor/findings.hpp"
#include "jit/build_key.hpp"
#include "jit/parse_specialization.hpp"
#include "jit/tuning_file.hpp"
#include "jit/warm/manifest.hpp"
#include "templates/registry.hpp"
#include "tests/cli/cli_fixture.hpp"
#include "tests/support/fake_cuda.hpp"

namespace rlk::cli {
namespace {

using runtime::cuda::Driver;

const std::string k_fwd = "linear_logp.fwd[x=bf16 V=100 D=64]@sm_90a";
const std::string k_bwd = "linear_logp.bwd[x=bf16 V=100 D=64]@sm_90a";

class ExamineReadinessTest : public CliTest {
 protected:
  ExamineReadinessTest() {
    test::fake_cuda() = test::FakeCuda{};
    settings_.package_folder = package_;
    settings_.cache_dir = folder_;
  }

  void store_kernel(const std::string& name, const std::string& made_by = "nvrtc-12.9-ab") const {
    const auto spec = jit::parse_specialization(name, templates::ops());
    const nlohmann::json metadata = {{"name", name}, {"target", rlk::name(spec.target)}};
    cache::DiskStore({.read_write = folder_})
        .put({jit::build_key(spec).bytes, metadata.dump(), std::vector<std::byte>(10)}, made_by);
  }

  // For all rows that of k_fwd.
  void choose_one_tile() const {
    jit::store_tuning({.read_write = folder_}, {"linear_logp",
                                                jit::Pass::fwd,
                                                Target::sm_90a,
                                                {"Fake H100 number 0", "12.8"},
                                                {"128-dynamic", "128-dynamic", "128-dynamic"}});
  }

  Findings examine(int version, const KernelChoice& choice = {}) {
    test::fake_cuda().version = version;
    Driver driver(RLK_FAKE_CUDA);
    jit::NvrtcCompiler nvrtc(
        {.search = [] { return jit::NvrtcSearch{}; }, .major = {}, .dump_dir = {}});
    std::ostringstream unused;
    const Context context{settings_, {}, false, false, false, unused, unused};
    const jit::Layers layers = layers_of(context);
    cache::DiskStore store(layers.options);
    Findings findings;
    examine_readiness(context, layers, store, {&driver, "", true, nvrtc}, choice, findings);
    return findings;
  }

  Settings settings_;
};

TEST_F(ExamineReadinessTest, NothingIsAskedForAndNothingIsThere) {
  EXPECT_TRUE(examine(12080).empty());
}

TEST_F(ExamineReadinessTest, TheModelsKernelsMustBeThere) {
  KernelChoice choice;
  choice.models = {"V=100,D=64"};
  choice.ops = {"linear_logp"};
  choose_one_tile();
  settings_.saved_mib = 0;
  store_kernel(k_fwd);
  auto findings = examine(12080, choice);
  ASSERT_EQ(findings.size(), 1u);
  EXPECT_EQ(findings[0].state, State::fail);
  EXPECT_EQ(findings[0].text, "1 of 2 of the models' kernels are cached; missing: " + k_bwd +
                                  "; rlk-jit warm compiles them");
  store_kernel(k_bwd, "nvrtc-12.0-of-another");
  findings = examine(12080, choice);
  EXPECT_EQ(findings[0].state, State::good);
  // A forward that keeps exponentials is another kernel.
  settings_.saved_mib = 512;
  findings = examine(12080, choice);
  EXPECT_EQ(findings[0].text,
            "2 of 3 of the models' kernels are cached; missing: linear_logp.fwd[x=bf16 V=100 D=64 "
            "keep=yes]@sm_90a; rlk-jit warm compiles them");
  // For another card.
  choice.archs = {"sm_80"};
  EXPECT_EQ(examine(12080, choice)[0].state, State::fail);
}

TEST_F(ExamineReadinessTest, SoMustTheTilesOfAllRows) {
  KernelChoice choice;
  choice.models = {"V=100,D=64"};
  choice.ops = {"linear_logp"};
  settings_.saved_mib = 0;
  store_kernel(k_fwd);
  store_kernel(k_bwd);
  EXPECT_TRUE(examine(12080, choice)[0].text.starts_with(
      "2 of 4 of the models' kernels are cached; missing: linear_logp.fwd[x=bf16 V=100 D=64 tile="))
      << examine(12080, choice)[0].text;
  choose_one_tile();
  EXPECT_EQ(examine(12080, choice)[0].state, State::good);
}

TEST_F(ExamineReadinessTest, TheManifestsKernelsMustBeThere) {
  store_kernel(k_fwd);
  jit::add_to_manifest({.read_write = folder_}, {k_fwd});
  EXPECT_EQ(examine(12080)[0].state, State::good);
  jit::add_to_manifest({.read_write = folder_}, {k_bwd});
  const auto findings = examine(12080);
  EXPECT_EQ(findings[0].state, State::fail);
  EXPECT_NE(findings[0].text.find(k_bwd), std::string::npos);
}

TEST_F(ExamineReadinessTest, WhatIsAskedForMustBeInAManifest) {
  KernelChoice choice;
  choice.archs = {"sm_90a"};
  const auto findings = examine(12080, choice);
  ASSERT_EQ(findings.size(), 1u);
  EXPECT_EQ(findings[0].state, State::fail);
  EXPECT_EQ(findings[0].text, "no manifest lists any for sm_90a; rlk-jit warm writes one");
}

TEST_F(ExamineReadinessTest, ADriverTooOldForTheKernelsIsTold) {
  store_kernel(k_fwd, "nvrtc-13.0-ab");
  store_kernel(k_bwd, "nvrtc-12.9-ab");
  EXPECT_TRUE(examine(13000).empty());
  const auto findings = examine(12040);
  ASSERT_EQ(findings.size(), 1u);
  EXPECT_EQ(findings[0].subject, "driver");
  EXPECT_EQ(findings[0].state, State::warn);
  EXPECT_EQ(findings[0].text,
            "1 of the kernels here need a driver of CUDA 13.0 or later, this one is of CUDA "
            "12.4: " +
                k_fwd + "; rlk-jit warm --cuda 12 makes them for it");
}

TEST_F(ExamineReadinessTest, KernelsOfOtherCardsAloneAreTold) {
  store_kernel("linear_logp.fwd[x=bf16 V=100 D=64]@sm_80");
  const auto findings = examine(12080);
  ASSERT_EQ(findings.size(), 1u);
  EXPECT_EQ(findings[0].state, State::warn);
  EXPECT_EQ(findings[0].text, "none for this card, only for sm_80");
  store_kernel(k_fwd);
  EXPECT_TRUE(examine(12080).empty());
}

TEST_F(ExamineReadinessTest, StrictMakesWarningsFailures) {
  ::setenv("RLK_CACHE_PATH", (temp_ / "not-mounted").c_str(), 1);
  ::setenv("RLK_JIT", "off", 1);
  const auto states = [&](const std::vector<std::string>& words) {
    std::vector<std::string> found;
    const auto told = run_json(words);
    for (const auto& one : told["findings"]) {
      if (one["subject"] == "layer") found.push_back(one["state"]);
    }
    return found;
  };
  EXPECT_EQ(states({"doctor"})[0], "warn");
  EXPECT_EQ(run_json({"doctor", "--strict"})["healthy"], false);
  EXPECT_EQ(run({"doctor", "--strict"}).code, 1);
  EXPECT_EQ(run({"doctor", "--for", "nonsense"}).code, 2);
  ::unsetenv("RLK_CACHE_PATH");
}

}  // namespace
}  // namespace rlk::cli
