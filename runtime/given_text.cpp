// SPDX-License-Identifier: Apache-2.0
// Decodes UTF-8 by hand: names may be any bytes.
#include "runtime/given_text.hpp"

#include "runtime/error.hpp"

#include <algorithm>
#include <cctype>

namespace rlk {
namespace {

// The bytes of the code point at the front; 0 if they are no UTF-8.
std::size_t code_point_bytes(std::string_view text, char32_t& code) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const std::size_t count = byte(0) < 0x80 ? 1 : byte(0) < 0xe0 ? 2 : byte(0) < 0xf0 ? 3 : 4;
  if (byte(0) >= 0x80 && (byte(0) < 0xc2 || byte(0) > 0xf4)) return 0;
  if (text.size() < count) return 0;
  code = count == 1 ? byte(0) : byte(0) & (0x7fu >> count);
  for (std::size_t i = 1; i < count; ++i) {
    if ((byte(i) & 0xc0) != 0x80) return 0;
    code = code << 6 | (byte(i) & 0x3fu);
  }
  const bool is_too_long = (count == 3 && code < 0x800) || (count == 4 && code < 0x10000);
  return is_too_long || code > 0x10ffff || (code >= 0xd800 && code < 0xe000) ? 0 : count;
}

// What a terminal obeys, what turns the order of the text around, and spaces that look like none
// or like another: no-break, of no width, a byte order mark.
bool is_unseen(char32_t code) {
  return code < 0x20 || (code >= 0x7f && code <= 0xa0) || code == 0x61c || code == 0x200b ||
         code == 0x200e || code == 0x200f || (code >= 0x2028 && code <= 0x202e) ||
         (code >= 0x2066 && code <= 0x2069) || code == 0xfeff;
}

enum class Kind { seen, unseen, no_text };

// Takes the code point, or the byte that is none, off the front.
Kind take(std::string_view& text, std::string_view& bytes) {
  char32_t code = 0;
  const std::size_t count = code_point_bytes(text, code);
  bytes = text.substr(0, std::max<std::size_t>(count, 1));
  text.remove_prefix(bytes.size());
  return count == 0 ? Kind::no_text : is_unseen(code) ? Kind::unseen : Kind::seen;
}

bool has_unseen(std::string_view text) {
  std::string_view bytes;
  while (!text.empty()) {
    if (take(text, bytes) == Kind::unseen) return true;
  }
  return false;
}

bool starts_name(std::string_view text) {
  return !text.empty() && std::isalpha(static_cast<unsigned char>(text.front())) != 0;
}

// "~/x" of a shell, "$HOME", "${HOME}", "$(HOME)" of one or of Kubernetes, "%h" of systemd and
// "%TEMP%" of Windows.
bool is_unexpanded(std::string_view text) {
  if (text.starts_with("./")) return false;
  if (text.starts_with('~')) return true;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const std::string_view rest = text.substr(i + 1);
    if (text[i] == '$' && (starts_name(rest) || rest.starts_with('_') || rest.starts_with('{') ||
                           rest.starts_with('('))) {
      return true;
    }
    if (text[i] == '%' && starts_name(rest) && (i == 0 || text[i - 1] == '/')) return true;
  }
  return false;
}

}  // namespace

std::string printable(std::string_view text) {
  std::string shown;
  for (std::string_view bytes; !text.empty();) {
    if (take(text, bytes) == Kind::seen) {
      shown += bytes;
    } else {
      for (const char c : bytes) shown += fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
    }
  }
  return shown;
}

std::string in_quotes(std::string_view text) { return fmt::format("\"{}\"", printable(text)); }

std::string_view expected_path(std::string_view text) {
  if (text.empty()) return "a path";
  if (has_unseen(text)) return "a path without characters that nobody sees";
  if (text.front() == ' ' || text.back() == ' ') return "a path without spaces around it";
  if (text.front() == '"' || text.front() == '\'') return "a path without quotes around it";
  if (is_unexpanded(text)) {
    return "a path in full (~, $NAME and %h are not expanded; ./ before one takes it as it is)";
  }
  return {};
}

void expect_path(std::string_view text, std::string_view source) {
  const std::string_view expected = expected_path(text);
  if (!expected.empty()) {
    throw InvalidArgument(Fault{"", std::string(source), std::string(expected), in_quotes(text)});
  }
}

}  // namespace rlk
