// SPDX-License-Identifier: Apache-2.0
// One cache entry and its bytes. The grammar below is the format; docs/cache-format.md repeats it.
//
//   entry         = magic version key_size metadata_size payload_size key metadata payload checksum
//   magic         = 89 52 4c 4b 0d 0a 1a 0a     ("\x89RLK\r\n\x1a\n": a text-mode copy breaks it)
//   version       = u32                         format_version below
//   key_size      = u32                         at most 1 MiB
//   metadata_size = u64                         at most 16 MiB
//   payload_size  = u64                         at most 1 GiB
//   key           = key_size bytes              the full key, see key.hpp
//   metadata      = metadata_size bytes         JSON text in UTF-8; this layer never reads it
//   payload       = payload_size bytes          the artifact; this layer never reads it
//   checksum      = 16 bytes                    xxHash-128, canonical order, of all bytes before it
//
// Integers are unsigned and little-endian. The sizes and the file's size must agree to the byte.
// The checksum shows damage, not forgery.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace rlk::cache {

inline constexpr std::uint32_t format_version = 1;

inline constexpr std::size_t entry_head_bytes = 32;  // magic to payload_size
inline constexpr std::uint64_t max_key_bytes = std::uint64_t{1} << 20;
inline constexpr std::uint64_t max_metadata_bytes = std::uint64_t{16} << 20;
inline constexpr std::uint64_t max_payload_bytes = std::uint64_t{1} << 30;

struct Entry {
  std::string key;       // Key::bytes
  std::string metadata;  // JSON text
  std::vector<std::byte> payload;

  bool operator==(const Entry&) const = default;
};

// The sizes that stand at the head of an entry.
struct EntrySizes {
  std::uint64_t key_bytes = 0;
  std::uint64_t metadata_bytes = 0;
  std::uint64_t payload_bytes = 0;

  constexpr std::uint64_t file_bytes() const {
    constexpr std::uint64_t k_checksum_bytes = 16;
    return entry_head_bytes + key_bytes + metadata_bytes + payload_bytes + k_checksum_bytes;
  }

  bool operator==(const EntrySizes&) const = default;
};

// A decoded value, or in words what is wrong with the bytes.
template <class T>
struct Decoded {
  std::optional<T> value;
  std::string problem;  // empty exactly when there is a value
};

// The bytes of an entry. Throws InvalidArgument if a part is larger than the format allows.
std::string encode_entry(const Entry& entry);

// `bytes` is a whole file. Safe for any bytes; allocates nothing before the sizes agree.
Decoded<Entry> decode_entry(std::span<const std::byte> bytes);

// `head` is the front of a file of `file_bytes` bytes, entry_head_bytes of it if the file has them.
// Says nothing about the checksum.
Decoded<EntrySizes> decode_sizes(std::span<const std::byte> head, std::uint64_t file_bytes);

}  // namespace rlk::cache
