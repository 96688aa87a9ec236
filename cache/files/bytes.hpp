// SPDX-License-Identifier: Apache-2.0
// Little-endian integers in byte strings, hex digits, and the one checksum: what key, entry and
// pack share.
#pragma once

#include <xxhash.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace rlk::cache {

template <class Unsigned>
void append_little_endian(std::string& bytes, Unsigned value) {
  for (std::size_t i = 0; i < sizeof(Unsigned); ++i) {
    bytes.push_back(static_cast<char>(static_cast<unsigned char>(value >> (8 * i))));
  }
}

// Reads sizeof(Unsigned) bytes; the caller has checked that they are there.
template <class Unsigned>
Unsigned load_little_endian(const void* from) {
  const auto* bytes = static_cast<const unsigned char*>(from);
  Unsigned value = 0;
  for (std::size_t i = 0; i < sizeof(Unsigned); ++i) {
    value = static_cast<Unsigned>(value | (static_cast<Unsigned>(bytes[i]) << (8 * i)));
  }
  return value;
}

// xxHash-128 in its canonical (big-endian) byte order, the same on every machine.
inline XXH128_canonical_t checksum(const void* bytes, std::size_t num_bytes) {
  XXH128_canonical_t canonical;
  XXH128_canonicalFromHash(&canonical, XXH3_128bits(bytes, num_bytes));
  return canonical;
}

// The same of bytes that come in pieces.
class Checksum {
 public:
  Checksum() { XXH3_128bits_reset(&state_); }

  void update(std::string_view bytes) { XXH3_128bits_update(&state_, bytes.data(), bytes.size()); }

  XXH128_canonical_t sum() const {
    XXH128_canonical_t canonical;
    XXH128_canonicalFromHash(&canonical, XXH3_128bits_digest(&state_));
    return canonical;
  }

 private:
  XXH3_state_t state_;
};

// Two lower-case digits per byte.
inline std::string hex(std::span<const unsigned char> bytes) {
  constexpr std::string_view k_digits = "0123456789abcdef";
  std::string text;
  for (const unsigned char byte : bytes) {
    text.push_back(k_digits[byte >> 4]);
    text.push_back(k_digits[byte & 15]);
  }
  return text;
}

inline std::string_view as_text(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

}  // namespace rlk::cache
