// SPDX-License-Identifier: Apache-2.0
// libFuzzer target for all that reads bytes of strangers: entries, keys and file names. Not in CI;
// build and run: ninja fuzz && tests/fuzz_entry -max_total_time=600
#include "cache/entry.hpp"
#include "cache/entry_name.hpp"
#include "cache/key.hpp"

#include <cstdlib>
#include <cstring>

using namespace rlk::cache;

namespace {

void expect(bool is_true) {
  if (!is_true) std::abort();
}

// The bytes as they are; then under a head that fits and with a checksum that fits, since chance
// finds neither.
void decode(std::span<const std::byte> bytes) {
  const auto decoded = decode_entry(bytes);
  expect(decoded.value.has_value() == decoded.problem.empty());
  const auto sizes = decode_sizes(bytes, bytes.size());
  expect(sizes.value.has_value() == sizes.problem.empty());
  if (!decoded.value) return;
  expect(sizes.value && sizes.value->file_bytes() == bytes.size());
  const std::string again = encode_entry(*decoded.value);
  expect(again.size() == bytes.size() &&
         std::memcmp(again.data(), bytes.data(), again.size()) == 0);
}

void decode_with_sound_checksum(std::span<const std::byte> bytes) {
  if (bytes.size() < 2) return;
  const std::size_t num_key = std::min(std::to_integer<std::size_t>(bytes[0]), bytes.size() - 2);
  const std::size_t num_metadata =
      std::min(std::to_integer<std::size_t>(bytes[1]), bytes.size() - 2 - num_key);
  const auto* text = reinterpret_cast<const char*>(bytes.data()) + 2;
  Entry entry{std::string(text, num_key), std::string(text + num_key, num_metadata), {}};
  const auto rest = bytes.subspan(2 + num_key + num_metadata);
  entry.payload.assign(rest.begin(), rest.end());
  const std::string encoded = encode_entry(entry);
  const auto decoded = decode_entry(std::as_bytes(std::span(encoded)));
  expect(decoded.value && *decoded.value == entry);
}

void decode_key_and_name(std::string_view text) {
  if (const auto fields = decode_key(text)) {
    KeyBuilder builder;
    for (const auto& [tag, value] : *fields) builder.field(tag, value);
    expect(builder.finish().bytes == text);
  }
  text = text.substr(0, 300);  // longer than a name gets
  if (const auto name = parse_entry_file_name(text)) expect(text.starts_with(name->digest));
  is_temp_file_name(text);
  const std::string digest = Key{std::string(text)}.digest();
  const auto parsed = parse_entry_file_name(entry_file_name(digest, text));
  expect(text.empty() || (parsed && parsed->digest == digest));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto bytes = std::as_bytes(std::span(data, size));
  decode(bytes);
  decode_with_sound_checksum(bytes);
  decode_key_and_name({reinterpret_cast<const char*>(data), size});
  return 0;
}
