// SPDX-License-Identifier: Apache-2.0
// The cache key: every input of an artifact as tagged fields, and its digest, which names the file.
//
//   key   = *field
//   field = tag_size tag value_size value      sizes: u64, little-endian, in bytes
//
// Tags and lengths stand in the bytes so that no two different field lists give the same key:
// without them ("a", "bc") and ("ab", "c") would be one. Which fields there are and their order is
// the caller's business.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace rlk::cache {

struct Key {
  std::string bytes;  // all fields, serialized as above

  // xxHash-128 of the bytes, 32 lower-case hex digits.
  std::string digest() const;

  bool operator==(const Key&) const = default;
};

class KeyBuilder {
 public:
  KeyBuilder& field(std::string_view tag, std::string_view value);
  Key finish() const { return Key{bytes_}; }

 private:
  std::string bytes_;
};

struct KeyField {
  std::string tag;
  std::string value;

  bool operator==(const KeyField&) const = default;
};

// The fields of a serialized key, in order; nothing if the bytes are no key. Any bytes are safe.
std::optional<std::vector<KeyField>> decode_key(std::string_view bytes);

}  // namespace rlk::cache
