// SPDX-License-Identifier: Apache-2.0
// The logger: made at first use, never registered globally, so that no other spdlog user in the
// process can change or drop it.
#include "runtime/log.hpp"

#include "runtime/error.hpp"

#include <spdlog/sinks/stdout_sinks.h>

#include <memory>
#include <utility>

namespace rlk {
namespace {

spdlog::level::level_enum level_of(std::string_view name, std::string_view source) {
  constexpr std::pair<std::string_view, spdlog::level::level_enum> levels[] = {
      {"trace", spdlog::level::trace}, {"debug", spdlog::level::debug},
      {"info", spdlog::level::info},   {"warn", spdlog::level::warn},
      {"error", spdlog::level::err},   {"off", spdlog::level::off}};
  for (auto [text, level] : levels) {
    if (name == text) return level;
  }
  throw InvalidArgument("{}: expected trace, debug, info, warn, error or off, got \"{}\"", source,
                        name);
}

}  // namespace

spdlog::logger& log() {
  // Leaked on purpose: worker threads may still log while the process's statics are destroyed.
  static spdlog::logger* logger = [] {
    auto* made = new spdlog::logger("rlk", std::make_shared<spdlog::sinks::stderr_sink_mt>());
    made->set_pattern("rlk: %l: %v");
    made->set_level(spdlog::level::warn);
    return made;
  }();
  return *logger;
}

void set_log_level(std::string_view name, std::string_view source) {
  log().set_level(level_of(name, source));
}

}  // namespace rlk
