// SPDX-License-Identifier: Apache-2.0
// Makes and parses the names of entry files.
#include "cache/entry_name.hpp"

#include "cache/key.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <random>

namespace rlk::cache {
namespace {

constexpr std::string_view k_suffix = ".rlk";
constexpr std::size_t k_digest_digits = 32;
// With digest, suffix and what a temp name adds this stays under the 255 bytes that file systems
// take (143 under eCryptfs).
constexpr std::size_t k_most_compiler_bytes = 64;

bool is_plain(char c) {
  return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '-' ||
         c == '_' || c == '.' || c == '+';
}

bool is_hex_digit(char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); }

}  // namespace

std::string entry_file_name(std::string_view digest, std::string_view compiler) {
  std::string safe;
  for (const char c : compiler) {
    if (is_plain(c)) {
      safe.push_back(c);
    } else {
      safe += fmt::format("%{:02X}", static_cast<unsigned char>(c));
    }
  }
  if (safe.size() > k_most_compiler_bytes) safe = Key{std::string(compiler)}.digest();
  return fmt::format("{}.{}{}", digest, safe, k_suffix);
}

std::optional<EntryFileName> parse_entry_file_name(std::string_view name) {
  // At least one byte of compiler between the digest's dot and the suffix.
  if (name.size() < k_digest_digits + 2 + k_suffix.size() || !name.ends_with(k_suffix) ||
      name[k_digest_digits] != '.' ||
      !std::ranges::all_of(name.substr(0, k_digest_digits), is_hex_digit)) {
    return std::nullopt;
  }
  EntryFileName parsed{std::string(name.substr(0, k_digest_digits)), {}};
  name.remove_prefix(k_digest_digits + 1);
  name.remove_suffix(k_suffix.size());
  parsed.compiler.reserve(name.size());
  for (std::size_t i = 0; i < name.size(); ++i) {
    unsigned char byte = 0;
    const char* hex = name.data() + i + 1;
    if (name[i] == '%' && i + 2 < name.size() &&
        std::from_chars(hex, hex + 2, byte, 16).ptr == hex + 2) {
      parsed.compiler.push_back(static_cast<char>(byte));
      i += 2;
    } else {
      parsed.compiler.push_back(name[i]);
    }
  }
  return parsed;
}

std::string temp_file_name(std::string_view name) {
  const std::string digest = parse_entry_file_name(name)
                                 ? std::string(name.substr(0, k_digest_digits))
                                 : Key{std::string(name)}.digest();
  // Not the pid: on a network file system another node may have the same.
  std::random_device random;
  return fmt::format(".{}.{:08x}{:08x}.tmp", digest, random(), random());
}

bool is_temp_file_name(std::string_view name) {
  constexpr std::size_t k_random_digits = 16;
  constexpr std::string_view k_temp_suffix = ".tmp";
  const auto is_hex = [](std::string_view text) { return std::ranges::all_of(text, is_hex_digit); };
  return name.size() == 2 + k_digest_digits + k_random_digits + k_temp_suffix.size() &&
         name.starts_with('.') && is_hex(name.substr(1, k_digest_digits)) &&
         name[1 + k_digest_digits] == '.' &&
         is_hex(name.substr(2 + k_digest_digits, k_random_digits)) && name.ends_with(k_temp_suffix);
}

}  // namespace rlk::cache
