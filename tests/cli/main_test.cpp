// SPDX-License-Identifier: Apache-2.0
// The program itself, as a process: pipes, exit codes, a full disk.
#include "tests/cli/cli_fixture.hpp"

#include <sys/wait.h>

#include <csignal>
#include <cstdio>

namespace rlk::cli {
namespace {

class MainTest : public CliTest {
 protected:
  // Runs a line of bash in which $rlk stands for the program and its folders.
  Ran bash(const std::string& line) const {
    ::setenv("rlk_program", RLK_JIT_PROGRAM, 1);
    ::setenv("rlk_folder", folder_.c_str(), 1);
    ::setenv("rlk_package", package_.c_str(), 1);
    ::setenv("rlk_fake_cuda", std::filesystem::path(RLK_FAKE_CUDA).parent_path().c_str(), 1);
    ::setenv("rlk_fake_nvrtc", RLK_FAKE_NVRTC, 1);
    ::setenv("rlk_err", (temp_ / "err").c_str(), 1);
    const std::string script =
        "rlk() { \"$rlk_program\" --cache-dir \"$rlk_folder\" --package \"$rlk_package\" \"$@\"; "
        "}; "
        "exec 2>\"$rlk_err\"; " +
        line;
    ::setenv("rlk_script", script.c_str(), 1);
    std::FILE* pipe = ::popen("bash -c \"$rlk_script\"", "r");
    Ran ran;
    for (int c = std::fgetc(pipe); c != EOF; c = std::fgetc(pipe)) {
      ran.out.push_back(static_cast<char>(c));
    }
    ran.code = WEXITSTATUS(::pclose(pipe));
    ran.err = test::read_file(temp_ / "err");
    return ran;
  }
};

TEST_F(MainTest, PipesGetPlainText) {
  put(folder_, "toy");
  const Ran ran = bash("TERM=xterm rlk list | cat");
  EXPECT_EQ(ran.code, 0);
  EXPECT_EQ(ran.out, run({"list"}).out);
}

TEST_F(MainTest, ExitCodesReachTheShell) {
  EXPECT_EQ(bash("rlk list").code, 0);
  EXPECT_EQ(bash("rlk show nothing").code, 1);
  EXPECT_EQ(bash("rlk lost").code, 2);
}

// Also where the parent ignores SIGPIPE, as Python does.
TEST_F(MainTest, AReaderThatLeavesEndsItSilently) {
  for (int i = 0; i < 150; ++i) {
    // More than a pipe holds: names of 1000 letters.
    put(folder_, std::to_string(i) + std::string(1000, 'x'));
  }
  for (const char* before : {"", "trap '' PIPE; "}) {
    const Ran ran = bash(std::string(before) + "rlk list | head -1; exit ${PIPESTATUS[0]}");
    EXPECT_EQ(lines_of(ran.out).size(), 1u);
    EXPECT_EQ(ran.code, 128 + SIGPIPE) << before;
    EXPECT_EQ(ran.err, "") << before;
  }
}

TEST_F(MainTest, AFullDiskIsAnError) {
  const Ran ran = bash("rlk list > /dev/full");
  EXPECT_EQ(ran.code, 1);
  EXPECT_NE(ran.err.find("stdout"), std::string::npos) << ran.err;
}

// Also where it is noticed before the end, or where there never was a stdout.
TEST_F(MainTest, OutputThatCannotBeWrittenTellsWhy) {
  for (int i = 0; i < 150; ++i) put(folder_, std::to_string(i) + std::string(1000, 'x'));
  EXPECT_EQ(bash("rlk list > /dev/full").err, "rlk-jit: stdout: No space left on device\n");
  const Ran ran = bash("rlk list >&-");
  EXPECT_EQ(ran.code, 1);
  EXPECT_EQ(ran.err, "rlk-jit: stdout: Bad file descriptor\n");
}

// All that is looked at is well, and the call tells that the compiler's code is none.
TEST_F(MainTest, DoctorFindsTheDriverItselfAndCallsAKernel) {
  const std::string with_driver = "export LD_LIBRARY_PATH=\"$rlk_fake_cuda\"; ";
  const std::string with_nvrtc = "export RLK_NVRTC=\"$rlk_fake_nvrtc\"; ";
  const Ran ran = bash(with_driver + with_nvrtc + "rlk doctor");
  EXPECT_EQ(ran.code, 1) << ran.out;
  EXPECT_EQ(ran.err, "");
  for (const char* part :
       {"driver      CUDA 12.8", "cuda:1 Fake H100 number 1", "12.99 in ", "fail  cpu calls",
        "fail  cuda calls  run specialized kernels, compiled at first use",
        "; a call on cuda:1 fails: CUDA code: expected a cubin or PTX"}) {
    EXPECT_NE(ran.out.find(part), std::string::npos) << part << '\n' << ran.out;
  }
  const Ran without = bash(with_driver + "rlk doctor");
  EXPECT_EQ(without.code, 1);
  EXPECT_NE(without.out.find("fail  cpu calls"), std::string::npos) << without.out;
  EXPECT_NE(without.out.find("fail  cuda calls"), std::string::npos) << without.out;
}

}  // namespace
}  // namespace rlk::cli
