// SPDX-License-Identifier: Apache-2.0
// rlk-jit: the inspector of the kernel cache.
#include "cli/command_line.hpp"
#include "cli/context.hpp"

#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <iostream>
#include <string_view>
#include <system_error>

namespace {

rlk::cli::Terminal find_terminal() {
  const auto is_set = [](const char* variable) {
    const char* value = std::getenv(variable);
    return value != nullptr && *value != '\0';
  };
  const char* term = std::getenv("TERM");
  const bool is_dumb = term == nullptr || std::string_view(term) == "dumb";
  const bool can_ask = ::isatty(STDIN_FILENO) == 1 && ::isatty(STDERR_FILENO) == 1;
  return {.is_terminal = ::isatty(STDOUT_FILENO) == 1,
          .may_colour = !is_set("NO_COLOR") && !is_dumb,
          .answers = can_ask ? &std::cin : nullptr};
}

}  // namespace

int main(int argc, char** argv) {
  // Python ignores SIGPIPE and a program that it becomes inherits that: `rlk-jit list | head` must
  // end here as in any shell.
  std::signal(SIGPIPE, SIG_DFL);
  std::signal(SIGXFSZ, SIG_IGN);  // past `ulimit -f` a write is an error, as in Python
  std::ios::sync_with_stdio(false);
  const int code = rlk::cli::run(argc, argv, find_terminal(), std::cout, std::cerr);
  errno = 0;
  if (!std::cout.flush()) {
    const int error = errno;
    std::cerr << "rlk-jit: stdout: " << std::generic_category().message(error) << '\n';
    return rlk::cli::failed;
  }
  return code;
}
