// SPDX-License-Identifier: Apache-2.0
// Takes what the logger says while it lives, instead of stderr.
#pragma once

#include "runtime/log.hpp"

#include <algorithm>
#include <ostream>
#include <sstream>
#include <string>

namespace rlk::test {

class CapturedLog {
 public:
  CapturedLog() : before_(set_log_stream(&text_)) {}
  CapturedLog(const CapturedLog&) = delete;
  CapturedLog& operator=(const CapturedLog&) = delete;
  ~CapturedLog() { set_log_stream(before_); }

  std::string text() const { return text_.str(); }
  long num_lines() const { return std::ranges::count(text_.str(), '\n'); }
  bool contains(const std::string& part) const { return text().find(part) != std::string::npos; }
  void clear() { text_.str({}); }

 private:
  std::ostringstream text_;
  std::ostream* before_;
};

}  // namespace rlk::test
