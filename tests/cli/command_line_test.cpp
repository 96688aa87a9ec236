// SPDX-License-Identifier: Apache-2.0
// Usage and exit codes.
#include "cli/command_line.hpp"

#include "tests/cli/cli_fixture.hpp"

namespace rlk::cli {
namespace {

TEST_F(CliTest, HelpIsOnStdoutAndFine) {
  for (const std::vector<std::string>& words :
       std::vector<std::vector<std::string>>{{"--help"},
                                             {"list", "--help"},
                                             {"show", "--help"},
                                             {"path", "-h"},
                                             {"doctor", "--help"},
                                             {"verify", "--help"},
                                             {"prune", "--help"},
                                             {"remove", "--help"},
                                             {"clear", "--help"}}) {
    const Ran ran = run(words);
    EXPECT_EQ(ran.code, 0);
    EXPECT_NE(ran.out.find("Usage:"), std::string::npos) << ran.out;
    EXPECT_EQ(ran.err, "");
  }
  for (const char* command :
       {"list", "show", "path", "doctor", "verify", "prune", "remove", "clear"}) {
    EXPECT_NE(run({"--help"}).out.find(command), std::string::npos);
  }
  EXPECT_EQ(run({"--version"}).out, "rlk-jit " RLK_VERSION "\n");
}

TEST_F(CliTest, WrongUsageIsTwoAndOnStderr) {
  for (const std::vector<std::string>& words :
       std::vector<std::vector<std::string>>{{},
                                             {"lost"},
                                             {"list", "--lost"},
                                             {"list", "a", "b"},
                                             {"export", "-"},
                                             {"show"},
                                             {"show", "a", "b"},
                                             {"list", "--color", "blue"},
                                             {"list", "--layer"},
                                             {"remove"},
                                             {"remove", "--all-matching"},
                                             {"clear", "word"},
                                             {"clear"},
                                             {"prune", "word"},
                                             {"prune", "--max-size"},
                                             {"prune", "--max-size", "many"},
                                             {"prune", "--max-size", "0"},
                                             {"prune", "--older-than", "3"}}) {
    const Ran ran = run(words);
    EXPECT_EQ(ran.code, 2) << ran.out << ran.err;
    EXPECT_EQ(ran.out, "");
    EXPECT_NE(ran.err, "");
  }
}

TEST_F(CliTest, AnUnknownCommandIsNamed) {
  EXPECT_EQ(run({"--json", "frob"}).err,
            "rlk-jit: expected a command, got \"frob\"; see rlk-jit --help\n");
}

// An option that may be repeated takes one word each time, not those behind it.
TEST_F(CliTest, RepeatedOptionsLeaveTheWordsBehindThem) {
  for (const char* option : {"--site", "--layer"}) {
    EXPECT_EQ(run({option, temp_ / "a", "frob"}).err,
              "rlk-jit: expected a command, got \"frob\"; see rlk-jit --help\n");
  }
  const std::string file = put(folder_, "toy");
  EXPECT_EQ(run({"path", "--layer", builtin_, "toy"}).out, file + '\n');
  const Ran layer = run({"list", "--layer"});
  EXPECT_TRUE(layer.err.starts_with("rlk-jit: --layer: ")) << layer.err;
}

TEST_F(CliTest, EveryErrorNamesTheProgram) {
  for (const std::vector<std::string>& words :
       std::vector<std::vector<std::string>>{{}, {"list", "--lost"}, {"show"}, {"export", "-"}}) {
    const Ran ran = run(words);
    EXPECT_TRUE(ran.err.starts_with("rlk-jit: ")) << ran.err;
    EXPECT_EQ(lines_of(ran.err).size(), 1u) << ran.err;
  }
}

TEST_F(CliTest, APackIsNotWrittenToStdout) {
  put(folder_, "toy");
  const Ran ran = run({"export", "-"});
  EXPECT_EQ(ran.code, 2);
  EXPECT_EQ(ran.out, "");
  EXPECT_NE(ran.err.find("expected a file, got \"-\""), std::string::npos) << ran.err;
  EXPECT_FALSE(std::filesystem::exists("-"));
}

TEST_F(CliTest, HelpOfACommandTellsWhereTheOtherOptionsAre) {
  for (const char* command : {"list", "show", "path", "doctor", "explain", "stats", "warm",
                              "export", "import", "verify", "prune", "remove", "clear"}) {
    const Ran ran = run({command, "--help"});
    EXPECT_NE(ran.out.find("--json"), std::string::npos) << ran.out;
    EXPECT_NE(ran.out.find("rlk-jit --help"), std::string::npos) << ran.out;
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

}  // namespace
}  // namespace rlk::cli
