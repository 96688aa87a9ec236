// SPDX-License-Identifier: Apache-2.0
// Numbers and names as people read them.
#include "cli/text/text.hpp"

#include "runtime/error.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <ctime>

namespace rlk::cli {

std::string bytes_text(std::uint64_t num_bytes) {
  if (num_bytes < 1024) return fmt::format("{} B", num_bytes);
  constexpr std::array units = {"KiB", "MiB", "GiB", "TiB"};
  double value = static_cast<double>(num_bytes) / 1024;
  std::size_t unit = 0;
  // 1023.96 would print as 1024.0.
  while (value >= 1023.95 && unit + 1 < units.size()) {
    value /= 1024;
    ++unit;
  }
  return fmt::format("{:.1f} {}", value, units[unit]);
}

std::string entries_text(std::uint64_t count) {
  return fmt::format("{} {}", count, count == 1 ? "entry" : "entries");
}

std::string age_text(std::int64_t seconds) {
  seconds = std::max<std::int64_t>(seconds, 0);  // clocks of two machines differ
  if (seconds < 60) return fmt::format("{}s", seconds);
  if (seconds < 3600) return fmt::format("{}m", seconds / 60);
  if (seconds < 48 * 3600) return fmt::format("{}h", seconds / 3600);
  return fmt::format("{}d", seconds / 86400);
}

std::string milliseconds_text(double ms) {
  if (ms < 10) return fmt::format("{:.1f} ms", ms);
  if (ms < 1000) return fmt::format("{:.0f} ms", ms);
  return fmt::format("{:.1f} s", ms / 1000);
}

std::string time_text(std::int64_t seconds) {
  std::tm calendar{};
  const std::time_t time = seconds;
  if (::gmtime_r(&time, &calendar) == nullptr) return std::to_string(seconds);
  return fmt::format("{:04}-{:02}-{:02} {:02}:{:02}:{:02} UTC", 1900L + calendar.tm_year,
                     calendar.tm_mon + 1, calendar.tm_mday, calendar.tm_hour, calendar.tm_min,
                     calendar.tm_sec);
}

std::int64_t seconds_named(const std::string& text, std::string_view source) {
  constexpr std::string_view k_units = "smhdw";
  constexpr std::array<std::int64_t, 5> k_seconds = {1, 60, 3600, 86400, 7 * 86400};
  std::int64_t number = 0;
  const char* text_end = text.data() + text.size();
  const auto [end, error] = std::from_chars(text.data(), text_end, number);
  const std::size_t unit = end + 1 == text_end ? k_units.find(*end) : std::string_view::npos;
  std::int64_t seconds = 0;
  if (error == std::errc{} && number >= 0 && unit != std::string_view::npos &&
      !__builtin_mul_overflow(number, k_seconds[unit], &seconds)) {
    return seconds;
  }
  throw InvalidArgument("{}: expected an age such as 45s, 90m, 12h, 30d or 2w, got \"{}\"", source,
                        text);
}

std::size_t width(std::string_view text) {
  return static_cast<std::size_t>(
      std::ranges::count_if(text, [](char c) { return (c & 0xc0) != 0x80; }));
}

std::string painted(std::string_view text, Colour colour, bool enabled) {
  if (!enabled || colour == Colour::none) return std::string(text);
  const char* code = colour == Colour::bold    ? "1"
                     : colour == Colour::dim   ? "2"
                     : colour == Colour::red   ? "31"
                     : colour == Colour::green ? "32"
                                               : "33";
  return fmt::format("\x1b[{}m{}\x1b[0m", code, text);
}

}  // namespace rlk::cli
