// SPDX-License-Identifier: Apache-2.0
// The one logger, `rlk`, on stderr, at level warn unless RLK_LOG says otherwise. Only log.cpp
// includes spdlog, because its header takes seconds to compile.
#pragma once

#include <fmt/format.h>

#include <iosfwd>
#include <string_view>

namespace rlk {

enum class LogLevel { trace, debug, info, warn, error, off };

// What cannot be formatted is dropped: logging throws nothing.
class Log {
 public:
  template <class... Args>
  void log(LogLevel level, fmt::format_string<Args...> format, Args&&... args) {
    write(level, format, fmt::make_format_args(args...));
  }
  template <class... Args>
  void debug(fmt::format_string<Args...> format, Args&&... args) {
    write(LogLevel::debug, format, fmt::make_format_args(args...));
  }
  template <class... Args>
  void info(fmt::format_string<Args...> format, Args&&... args) {
    write(LogLevel::info, format, fmt::make_format_args(args...));
  }
  template <class... Args>
  void warn(fmt::format_string<Args...> format, Args&&... args) {
    write(LogLevel::warn, format, fmt::make_format_args(args...));
  }

 private:
  static void write(LogLevel level, fmt::string_view format, fmt::format_args args) noexcept;
};

inline Log log() { return {}; }

// What is below the level is dropped.
void set_log_level(LogLevel level);

// For tests: the log goes to the stream instead, or to stderr again if null. Returns the one
// before.
std::ostream* set_log_stream(std::ostream* stream);

}  // namespace rlk
