// SPDX-License-Identifier: Apache-2.0
// Serializes, digests and decodes cache keys.
#include "cache/key.hpp"

#include "cache/files/bytes.hpp"

namespace rlk::cache {
namespace {

void append_sized(std::string& bytes, std::string_view text) {
  append_little_endian(bytes, std::uint64_t{text.size()});
  bytes.append(text);
}

// Takes one length-prefixed string off the front; nothing if it is cut short.
std::optional<std::string_view> take_sized(std::string_view& rest) {
  if (rest.size() < sizeof(std::uint64_t)) return std::nullopt;
  const auto size = load_little_endian<std::uint64_t>(rest.data());
  rest.remove_prefix(sizeof(std::uint64_t));
  if (size > rest.size()) return std::nullopt;
  const std::string_view text = rest.substr(0, size);
  rest.remove_prefix(size);
  return text;
}

}  // namespace

std::string Key::digest() const { return hex(checksum(bytes.data(), bytes.size()).digest); }

KeyBuilder& KeyBuilder::field(std::string_view tag, std::string_view value) {
  append_sized(bytes_, tag);
  append_sized(bytes_, value);
  return *this;
}

std::optional<std::vector<KeyField>> decode_key(std::string_view bytes) {
  std::vector<KeyField> fields;
  while (!bytes.empty()) {
    const auto tag = take_sized(bytes);
    if (!tag) return std::nullopt;
    const auto value = take_sized(bytes);
    if (!value) return std::nullopt;
    fields.push_back({std::string(*tag), std::string(*value)});
  }
  return fields;
}

}  // namespace rlk::cache
