// SPDX-License-Identifier: Apache-2.0
// How far a long command is: a bar on a terminal, plain lines elsewhere.
#pragma once

#include "cli/context.hpp"

#include <cstddef>
#include <string>

namespace rlk::cli {

class Progress {
 public:
  Progress(const Context& context, std::size_t num_steps);

  // One more step is done. The line says what was done; empty: nothing worth a line.
  void step(const std::string& line);
  void finish();

 private:
  void draw();
  void erase();

  const Context& context_;
  std::size_t num_steps_, num_done_ = 0;
  bool has_bar_;
};

}  // namespace rlk::cli
