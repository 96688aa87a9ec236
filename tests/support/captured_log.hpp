// SPDX-License-Identifier: Apache-2.0
// Takes what the logger says while it lives, instead of stderr.
#pragma once

#include "runtime/log.hpp"

#include <spdlog/sinks/ostream_sink.h>

#include <algorithm>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

namespace rlk::test {

class CapturedLog {
 public:
  CapturedLog() : sinks_(log().sinks()) {
    auto sink = std::make_shared<spdlog::sinks::ostream_sink_mt>(text_);
    sink->set_pattern("%l: %v");
    log().sinks() = {sink};
  }
  CapturedLog(const CapturedLog&) = delete;
  CapturedLog& operator=(const CapturedLog&) = delete;
  ~CapturedLog() { log().sinks() = sinks_; }

  std::string text() const { return text_.str(); }
  long num_lines() const { return std::ranges::count(text_.str(), '\n'); }
  bool contains(const std::string& part) const { return text().find(part) != std::string::npos; }
  void clear() { text_.str({}); }

 private:
  std::ostringstream text_;
  std::vector<spdlog::sink_ptr> sinks_;
};

}  // namespace rlk::test
