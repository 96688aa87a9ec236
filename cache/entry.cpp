// SPDX-License-Identifier: Apache-2.0
// Encodes and decodes entries.
#include "cache/entry.hpp"

#include "cache/files/bytes.hpp"
#include "runtime/error.hpp"

#include <cstring>

namespace rlk::cache {
namespace {

constexpr std::string_view k_entry_magic{"\x89RLK\r\n\x1a\n", 8};
constexpr std::size_t k_checksum_bytes = sizeof(XXH128_canonical_t);

// Empty if the sizes are within the format's bounds, so that their sum cannot overflow.
std::string oversize_problem(const EntrySizes& sizes) {
  const auto check = [](std::string_view part, std::uint64_t size, std::uint64_t most) {
    return size <= most ? std::string()
                        : fmt::format("{}: expected at most {} bytes, got {}", part, most, size);
  };
  std::string problem = check("key", sizes.key_bytes, max_key_bytes);
  if (problem.empty()) problem = check("metadata", sizes.metadata_bytes, max_metadata_bytes);
  if (problem.empty()) problem = check("payload", sizes.payload_bytes, max_payload_bytes);
  return problem;
}

}  // namespace

std::string encode_entry(const Entry& entry) {
  const EntrySizes sizes{entry.key.size(), entry.metadata.size(), entry.payload.size()};
  if (const std::string problem = oversize_problem(sizes); !problem.empty()) {
    throw InvalidArgument("cache: {}", problem);
  }
  std::string bytes;
  bytes.reserve(sizes.file_bytes());
  bytes.append(k_entry_magic);
  append_little_endian(bytes, format_version);
  append_little_endian(bytes, static_cast<std::uint32_t>(sizes.key_bytes));
  append_little_endian(bytes, sizes.metadata_bytes);
  append_little_endian(bytes, sizes.payload_bytes);
  bytes.append(entry.key);
  bytes.append(entry.metadata);
  bytes.append(as_text(entry.payload));
  const XXH128_canonical_t sum = checksum(bytes.data(), bytes.size());
  bytes.append(reinterpret_cast<const char*>(sum.digest), sizeof(sum.digest));
  return bytes;
}

Decoded<EntrySizes> decode_sizes(std::span<const std::byte> head, std::uint64_t file_bytes) {
  if (head.size() < entry_head_bytes) {
    return {{}, fmt::format("expected at least {} bytes, got {}", entry_head_bytes, head.size())};
  }
  const std::string_view text = as_text(head);
  if (!text.starts_with(k_entry_magic)) return {{}, "not an rlk cache entry (wrong magic)"};
  const auto version = load_little_endian<std::uint32_t>(text.data() + 8);
  if (version != format_version) {
    return {{}, fmt::format("expected format version {}, got {}", format_version, version)};
  }
  const EntrySizes sizes{load_little_endian<std::uint32_t>(text.data() + 12),
                         load_little_endian<std::uint64_t>(text.data() + 16),
                         load_little_endian<std::uint64_t>(text.data() + 24)};
  if (std::string problem = oversize_problem(sizes); !problem.empty()) {
    return {{}, std::move(problem)};
  }
  if (sizes.file_bytes() != file_bytes) {
    return {{}, fmt::format("expected {} bytes, got {}", sizes.file_bytes(), file_bytes)};
  }
  return {sizes, {}};
}

Decoded<Entry> decode_entry(std::span<const std::byte> bytes) {
  Decoded<EntrySizes> sizes = decode_sizes(bytes, bytes.size());
  if (!sizes.value) return {{}, std::move(sizes.problem)};
  const std::size_t num_summed = bytes.size() - k_checksum_bytes;
  const XXH128_canonical_t sum = checksum(bytes.data(), num_summed);
  if (std::memcmp(sum.digest, bytes.data() + num_summed, k_checksum_bytes) != 0) {
    return {{}, "wrong checksum"};
  }
  const std::span<const std::byte> key = bytes.subspan(entry_head_bytes, sizes.value->key_bytes);
  const auto metadata = bytes.subspan(entry_head_bytes + key.size(), sizes.value->metadata_bytes);
  const auto payload =
      bytes.subspan(entry_head_bytes + key.size() + metadata.size(), sizes.value->payload_bytes);
  return {Entry{std::string(as_text(key)),
                std::string(as_text(metadata)),
                {payload.begin(), payload.end()}},
          {}};
}

}  // namespace rlk::cache
