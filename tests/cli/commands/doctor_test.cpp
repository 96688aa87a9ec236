// SPDX-License-Identifier: Apache-2.0
// rlk-jit doctor as a whole: settings, layers, and where something is missing.
#include "runtime/target.hpp"
#include "tests/cli/cli_fixture.hpp"

#include <sys/stat.h>

namespace rlk::cli {
namespace {

// The package of these tests has neither a compiler nor generic kernels.
TEST_F(CliTest, DoctorFailsWhereNothingCanRun) {
  const Ran ran = run({"doctor"});
  EXPECT_EQ(ran.code, 1);
  EXPECT_NE(ran.out.find("fail"), std::string::npos) << ran.out;
  // The missing file, or that this build never had one.
  EXPECT_TRUE(ran.out.find("librlk_llvm.so") != std::string::npos ||
              ran.out.find("no LLVM") != std::string::npos)
      << ran.out;
  EXPECT_NE(ran.out.find(folder_), std::string::npos) << ran.out;
  EXPECT_FALSE(std::filesystem::exists(folder_));
  const auto json = run_json({"doctor"});
  EXPECT_EQ(json["healthy"], false);
  EXPECT_EQ(json["findings"][0]["subject"], "rlk");
}

TEST_F(CliTest, DoctorTellsTheProcessorsLevel) {
  const auto host = host_cpu_target();
  ASSERT_TRUE(host) << "these tests need x86-64-v2";
  EXPECT_NE(run({"doctor"}).out.find(rlk::name(*host)), std::string::npos);
}

TEST_F(CliTest, DoctorTellsOfARefusedFolder) {
  put(folder_, "toy");
  ASSERT_EQ(::chmod(folder_.c_str(), 0777), 0);
  const Ran ran = run({"doctor"});
  EXPECT_EQ(ran.code, 1);
  EXPECT_NE(ran.out.find("chmod go-w"), std::string::npos) << ran.out;
}

TEST_F(CliTest, DoctorCountsDamage) {
  test::write_file(put(folder_, "toy"), "damage");
  EXPECT_NE(run({"doctor"}).out.find("1 of no use"), std::string::npos);
}

// The text in the table and the fields in JSON say the same.
TEST_F(CliTest, DoctorTellsTheSettingsInForce) {
  EXPECT_NE(run({"doctor"})
                .out.find("RLK_JIT=sync RLK_LOG=warn RLK_VALIDATE=async RLK_WORKSPACE_MIB=768 "
                          "RLK_SAVED_MIB=512 RLK_CACHE_DIR="),
            std::string::npos);
  ::setenv("RLK_VALIDATE", "sync", 1);
  ::setenv("RLK_WORKSPACE_MIB", "64", 1);
  ::setenv("RLK_DUMP_DIR", "/dump", 1);
  ::setenv("RLK_ARCH", "x86-64-v2,sm_90a", 1);
  const Ran ran = run({"doctor"});
  for (const char* part : {"RLK_VALIDATE=sync", "RLK_WORKSPACE_MIB=64", "RLK_DUMP_DIR=/dump",
                           "RLK_ARCH=x86-64-v2,sm_90a", "RLK_NVRTC="}) {
    EXPECT_NE(ran.out.find(part), std::string::npos) << part << ran.out;
  }
  const auto details = finding("settings")["details"];
  EXPECT_EQ(details["RLK_VALIDATE"], "sync");
  EXPECT_EQ(details["RLK_WORKSPACE_MIB"], "64");
  EXPECT_EQ(details["RLK_NVRTC"], temp_ / "no-nvrtc");
}

TEST_F(CliTest, DoctorNamesVariablesThatAreNoSettings) {
  EXPECT_TRUE(finding("environment").is_null());
  ::setenv("RLK_CACHEDIR", "/x", 1);
  const auto found = finding("environment");
  ::unsetenv("RLK_CACHEDIR");
  EXPECT_EQ(found["state"], "warn");
  EXPECT_EQ(found["details"]["ignored"], nlohmann::json::array({"RLK_CACHEDIR"}));
  EXPECT_TRUE(found["text"].get<std::string>().starts_with("RLK_CACHEDIR ignored: "));
}

TEST_F(CliTest, DoctorLooksForNvrtcWhereRlkNvrtcSays) {
  const auto nvrtc = finding("nvrtc");
  EXPECT_EQ(nvrtc["details"]["path"], temp_ / "no-nvrtc");
  EXPECT_EQ(nvrtc["details"]["chosen"], false);
  EXPECT_NE(nvrtc["text"].get<std::string>().find("RLK_NVRTC names no file"), std::string::npos);
}

// Wheels lie beside the package and in the folders that the Python script passes.
TEST_F(CliTest, DoctorLooksForNvrtcInPythonsFolders) {
  ::unsetenv("RLK_NVRTC");
  for (const char* site : {"site", "."}) {
    const std::string folder = temp_ / site + "/nvidia/cuda_nvrtc/lib";
    std::filesystem::create_directories(folder);
    test::write_file(folder + "/libnvrtc.so.12", "");
  }
  const auto findings = run_json({"--site", temp_ / "site", "doctor"})["findings"].dump();
  for (const char* site : {"site/", ""}) {
    const std::string path =
        std::filesystem::canonical(temp_.path()).string() + '/' + site + "nvidia/cuda_nvrtc/lib/";
    EXPECT_NE(findings.find(path), std::string::npos) << findings;
  }
}

}  // namespace
}  // namespace rlk::cli
