// SPDX-License-Identifier: Apache-2.0
// Numbers and names as people read them, and colour where it is wanted.
#pragma once

#include "runtime/given_text.hpp"

#include <cstdint>
#include <string>
#include <string_view>

namespace rlk::cli {

std::string bytes_text(std::uint64_t num_bytes);  // "812 B", "4.1 KiB"
std::string entries_text(std::uint64_t count);    // "1 entry", "2 entries"
std::string age_text(std::int64_t seconds);       // "5s", "12m", "3h", "40d"
std::string milliseconds_text(double ms);         // "0.4 ms", "187 ms", "2.3 s"
std::string time_text(std::int64_t seconds);      // "2025-01-31 12:00:00 UTC"

// Seconds of "45s", "90m", "12h", "30d" or "2w". Throws InvalidArgument, which names the source.
std::int64_t seconds_named(const std::string& text, std::string_view source);

// Columns that the text takes, one a code point.
std::size_t width(std::string_view text);

enum class Colour { none, bold, dim, red, green, yellow };

// The text, between the terminal's codes for the colour if `enabled`.
std::string painted(std::string_view text, Colour colour, bool enabled);

}  // namespace rlk::cli
