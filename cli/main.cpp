// SPDX-License-Identifier: Apache-2.0
// rlk-jit: the inspector of the kernel cache.
#include "cli/command_line.hpp"
#include "cli/context.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <iostream>
#include <string_view>
#include <system_error>
#include <tuple>

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

// A stream that the caller has closed would give its number to the first file that is opened here,
// into which prints would go. A folder in its place makes them the error that they are.
void occupy_standard_streams() {
  for (const int file : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (::fcntl(file, F_GETFD) == -1) std::ignore = ::open("/", O_RDONLY);
  }
}

}  // namespace

int main(int argc, char** argv) {
  occupy_standard_streams();
  // Python ignores SIGPIPE and a program that it becomes inherits that: `rlk-jit list | head` must
  // end here as in any shell.
  std::signal(SIGPIPE, SIG_DFL);
  std::signal(SIGXFSZ, SIG_IGN);  // past `ulimit -f` a write is an error, as in Python
  std::ios::sync_with_stdio(false);
  const int code = rlk::cli::run(argc, argv, find_terminal(), std::cout, std::cerr);
  if (!std::cout.flush()) {
    // The stream knows only that a write has failed: another one tells why.
    std::cout.clear();
    errno = 0;
    std::cout << '\n' << std::flush;
    const int error = errno != 0 ? errno : EIO;
    std::cerr << "rlk-jit: stdout: " << std::generic_category().message(error) << '\n';
    return rlk::cli::failed;
  }
  return code;
}
