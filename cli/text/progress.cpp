// SPDX-License-Identifier: Apache-2.0
// Draws the bar over itself, by a carriage return.
#include "cli/text/progress.hpp"

#include "cli/text/text.hpp"

#include <fmt/format.h>

namespace rlk::cli {
namespace {
constexpr std::size_t k_bar_width = 30;
}

Progress::Progress(const Context& context, std::size_t num_steps)
    : context_(context), num_steps_(num_steps), has_bar_(context.summary && !context.json) {
  draw();
}

void Progress::step(const std::string& line) {
  ++num_done_;
  erase();
  if (!line.empty() && !context_.json) context_.out << line << '\n' << std::flush;
  draw();
}

void Progress::finish() {
  erase();
  has_bar_ = false;
}

void Progress::draw() {
  if (!has_bar_) return;
  const std::size_t num_full = num_steps_ == 0 ? k_bar_width : k_bar_width * num_done_ / num_steps_;
  context_.out << fmt::format("[{}{}] {}/{}", std::string(num_full, '#'),
                              std::string(k_bar_width - num_full, '.'), num_done_, num_steps_)
               << std::flush;
}

void Progress::erase() {
  if (has_bar_) context_.out << "\r\033[K";
}

}  // namespace rlk::cli
