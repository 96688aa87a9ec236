// SPDX-License-Identifier: Apache-2.0
// Usage, exit codes, and doctor where something is missing.
#include "cli/command_line.hpp"

#include "runtime/target.hpp"
#include "tests/cli/cli_fixture.hpp"

#include <sys/stat.h>

namespace rlk::cli {
namespace {

TEST_F(CliTest, HelpIsOnStdoutAndFine) {
  for (const std::vector<std::string>& words :
       std::vector<std::vector<std::string>>{{"--help"},
                                             {"list", "--help"},
                                             {"show", "--help"},
                                             {"path", "-h"},
                                             {"doctor", "--help"}}) {
    const Ran ran = run(words);
    EXPECT_EQ(ran.code, 0);
    EXPECT_NE(ran.out.find("Usage:"), std::string::npos) << ran.out;
    EXPECT_EQ(ran.err, "");
  }
  for (const char* command : {"list", "show", "path", "doctor"}) {
    EXPECT_NE(run({"--help"}).out.find(command), std::string::npos);
  }
  EXPECT_EQ(run({"--version"}).out, "rlk-jit " RLK_VERSION "\n");
}

TEST_F(CliTest, WrongUsageIsTwoAndOnStderr) {
  for (const std::vector<std::string>& words :
       std::vector<std::vector<std::string>>{{},
                                             {"lost"},
                                             {"list", "--lost"},
                                             {"list", "word"},
                                             {"show"},
                                             {"show", "a", "b"},
                                             {"list", "--color", "blue"},
                                             {"list", "--layer"}}) {
    const Ran ran = run(words);
    EXPECT_EQ(ran.code, 2) << ran.out << ran.err;
    EXPECT_EQ(ran.out, "");
    EXPECT_NE(ran.err, "");
  }
}

TEST_F(CliTest, OptionsStandBeforeOrAfterTheSubcommand) {
  put(folder_, "toy");
  EXPECT_EQ(run({"--json", "list"}).out, run({"list", "--json"}).out);
}

TEST_F(CliTest, WhatThePythonScriptPassesIsTaken) {
  EXPECT_EQ(run({"--site", "/a", "--site", "/b", "list"}).code, 0);
}

TEST_F(CliTest, AWrongVariableIsAnError) {
  ::setenv("RLK_JIT", "sometimes", 1);
  const Ran ran = run({"list"});
  ::unsetenv("RLK_JIT");
  EXPECT_EQ(ran.code, 1);
  EXPECT_NE(ran.err.find("RLK_JIT"), std::string::npos) << ran.err;
}

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

}  // namespace
}  // namespace rlk::cli
