// SPDX-License-Identifier: Apache-2.0
// The logger: made at first use, never registered globally, so that no other spdlog user in the
// process can change or drop it.
#include "runtime/log.hpp"

#include <fcntl.h>
#include <pthread.h>
#include <spdlog/sinks/null_sink.h>
#include <spdlog/sinks/ostream_sink.h>
#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <exception>
#include <memory>
#include <mutex>
#include <ostream>
#include <utility>

namespace rlk {
namespace {

std::mutex& stderr_mutex() { return spdlog::details::console_mutex::mutex(); }

spdlog::logger& logger();

// A child must not find it taken, or the logger half made, by a thread that it does not have.
// Registered while the library is loaded: what is registered later is called earlier, so that
// builds, which log, have ended.
[[maybe_unused]] const int fork_handlers = ::pthread_atfork(
    [] {
      logger();
      stderr_mutex().lock();
    },
    [] { stderr_mutex().unlock(); }, [] { stderr_mutex().unlock(); });

spdlog::level::level_enum spdlog_level(LogLevel level) {
  switch (level) {
    case LogLevel::trace:
      return spdlog::level::trace;
    case LogLevel::debug:
      return spdlog::level::debug;
    case LogLevel::info:
      return spdlog::level::info;
    case LogLevel::warn:
      return spdlog::level::warn;
    case LogLevel::error:
      return spdlog::level::err;
    case LogLevel::off:
      break;
  }
  return spdlog::level::off;
}

spdlog::sink_ptr sink_to(std::ostream* stream) {
  spdlog::sink_ptr sink;
  if (stream == nullptr && ::fcntl(STDERR_FILENO, F_GETFD) == -1) {
    // Its number will be that of some file, which the log is not to be in.
    sink = std::make_shared<spdlog::sinks::null_sink_st>();
  } else if (stream == nullptr) {
    sink = std::make_shared<spdlog::sinks::stderr_sink_mt>();
    sink->set_pattern("rlk: %l: %v");
  } else {
    sink = std::make_shared<spdlog::sinks::ostream_sink_mt>(*stream);
    sink->set_pattern("%l: %v");
  }
  return sink;
}

spdlog::logger& logger() {
  // Leaked on purpose: worker threads may still log while the process's statics are destroyed.
  static spdlog::logger* logger = [] {
    auto* made = new spdlog::logger("rlk", sink_to(nullptr));
    made->set_level(spdlog::level::warn);
    return made;
  }();
  return *logger;
}

}  // namespace

void Log::write(LogLevel level, fmt::string_view format, fmt::format_args args) noexcept {
  try {
    const auto at = spdlog_level(level);
    if (logger().should_log(at)) logger().log(at, fmt::vformat(format, args));
  } catch (const std::exception&) {
  }
}

void set_log_level(LogLevel level) { logger().set_level(spdlog_level(level)); }

std::ostream* set_log_stream(std::ostream* stream) {
  static std::ostream* current = nullptr;
  logger().sinks() = {sink_to(stream)};
  return std::exchange(current, stream);
}

}  // namespace rlk
