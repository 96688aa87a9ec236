// SPDX-License-Identifier: Apache-2.0
// Tools are found, called without a shell, and leave nothing behind.
#include "cli/run_tool.hpp"

#include "runtime/error.hpp"
#include "tests/cli/fake_tool.hpp"
#include "tests/support/what.hpp"

#include <gtest/gtest.h>

#include <fstream>

namespace rlk::cli {
namespace {

namespace fs = std::filesystem;
using test::what;

class RunToolTest : public ::testing::Test {
 protected:
  std::string run(const std::string& tool, const std::string& payload,
                  std::vector<std::string> arguments = {}) const {
    return run_tool(tool, std::move(arguments), std::as_bytes(std::span(payload)));
  }
  std::string why(const std::string& tool) const {
    return what<LoadError>([&] { run(tool, "payload"); });
  }
  std::size_t num_temp_files() const {
    return static_cast<std::size_t>(std::distance(fs::directory_iterator(temp_), {}));
  }

  test::TempDir folder_;
  fs::path temp_ = folder_ / "temp";
  test::Variable tmpdir_{"TMPDIR", (fs::create_directory(temp_), temp_.string())};
};

TEST_F(RunToolTest, TheToolGetsItsArgumentsAndThePayload) {
  const auto tool =
      test::fake_tool(folder_ / "tool", "printf '%s|' \"$1\" \"$2\"; /bin/cat \"$3\"");
  const std::string payload = std::string("a\0b\n", 4) + std::string(1 << 20, 'x');
  EXPECT_EQ(run(tool, payload, {"$(touch x) `y`", "; z\n'"}), "$(touch x) `y`|; z\n'|" + payload);
  EXPECT_EQ(num_temp_files(), 0u);
}

TEST_F(RunToolTest, ThePayloadIsPrivateAndInTheTempFolder) {
  const auto tool = test::fake_tool(folder_ / "tool", "/bin/ls -l \"$1\"");
  const std::string listed = run(tool, "payload");
  EXPECT_TRUE(listed.starts_with("-rw------- ")) << listed;
  EXPECT_NE(listed.find(temp_.string() + "/rlk-payload."), std::string::npos) << listed;
}

TEST_F(RunToolTest, ATempFolderThatIsNotThereIsNamed) {
  const test::Variable gone("TMPDIR", temp_.string() + "/gone");
  EXPECT_EQ(why("/bin/cat"), "TMPDIR: No such file or directory");
}

TEST_F(RunToolTest, AToolThatFailsIsAnErrorAndLeavesNothing) {
  const auto tool = test::fake_tool(folder_ / "tool", "echo half; exit 3");
  EXPECT_EQ(why(tool), tool + ": expected exit status 0, got 3");
  test::fake_tool(folder_ / "tool", "kill -9 $$");
  EXPECT_EQ(why(tool), tool + ": ended by signal 9");
  test::write_file(tool, "\x7f no program");
  EXPECT_NE(why(tool), "");
  EXPECT_NE(why(folder_ / "nothing").find("No such file"), std::string::npos);
  EXPECT_EQ(num_temp_files(), 0u);
}

TEST_F(RunToolTest, ItReadsNothingOfOurStdin) {
  const auto tool = test::fake_tool(folder_ / "tool", "/bin/cat");
  EXPECT_EQ(run(tool, "payload"), "");
}

TEST_F(RunToolTest, PathComesFirstAndRelativeFoldersNever) {
  for (const char* folder : {"a", "b", "c"}) fs::create_directory(folder_ / folder);
  test::fake_tool(folder_ / "b/tool", "");
  test::fake_tool(folder_ / "c/tool", "");
  test::write_file(folder_ / "a/tool", "not executable");
  fs::create_directory(folder_ / "a/other");
  const test::Variable path("PATH", ".::" + folder_ / "a" + ":" + folder_ / "b");
  EXPECT_EQ(find_tool("tool", {folder_ / "c"}), fs::path(folder_ / "b/tool"));
  fs::remove(folder_ / "b/tool");
  EXPECT_EQ(find_tool("tool", {folder_ / "c"}), fs::path(folder_ / "c/tool"));
  EXPECT_EQ(find_tool("tool", {}), std::nullopt);
  EXPECT_EQ(find_tool("other", {}), std::nullopt) << "a folder";
}

}  // namespace
}  // namespace rlk::cli
