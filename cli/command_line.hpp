// SPDX-License-Identifier: Apache-2.0
// The command line of rlk-jit.
#pragma once

#include <istream>
#include <ostream>

namespace rlk::cli {

// What the program knows of who is there.
struct Terminal {
  bool is_terminal = false;
  bool may_colour = false;
  std::istream* answers = nullptr;  // where to read what a person answers; null: none to ask
};

// Parses, runs, returns the exit code. Throws nothing.
int run(int argc, const char* const* argv, const Terminal& terminal, std::ostream& out,
        std::ostream& err);

}  // namespace rlk::cli
