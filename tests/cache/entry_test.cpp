// SPDX-License-Identifier: Apache-2.0
#include "cache/entry.hpp"

#include "runtime/error.hpp"

#include <gtest/gtest.h>

#include <random>
#include <string_view>

namespace rlk::cache {
namespace {

std::vector<std::byte> payload_of(std::string_view text) {
  const auto bytes = std::as_bytes(std::span(text));
  return {bytes.begin(), bytes.end()};
}

Entry sample_entry() { return {"the key", R"({"name":"k"})", payload_of("payload bytes")}; }

Decoded<Entry> decode(std::string_view bytes) {
  return decode_entry(std::as_bytes(std::span(bytes)));
}

void set_u64(std::string& bytes, std::size_t at, std::uint64_t value) {
  for (std::size_t i = 0; i < 8; ++i) bytes[at + i] = static_cast<char>(value >> (8 * i));
}

TEST(Entry, ComesBackWhole) {
  EXPECT_EQ(decode(encode_entry(sample_entry())).value, sample_entry());
  EXPECT_EQ(decode(encode_entry(Entry{})).value, Entry{});
  const Entry large{std::string(1000, 'k'), std::string(100000, 'm'),
                    std::vector<std::byte>(3 << 20, std::byte{7})};
  EXPECT_EQ(decode(encode_entry(large)).value, large);
}

// Files of this format lie on disks: changed bytes need another format_version.
TEST(Entry, BytesAreFrozen) {
  const std::string bytes = encode_entry({"K", "{}", payload_of("PAY")});
  ASSERT_EQ(bytes.size(), entry_head_bytes + 1 + 2 + 3 + 16);
  EXPECT_EQ(bytes.substr(0, 38), std::string("\x89RLK\r\n\x1a\n"
                                             "\1\0\0\0"
                                             "\1\0\0\0"
                                             "\2\0\0\0\0\0\0\0"
                                             "\3\0\0\0\0\0\0\0"
                                             "K{}PAY",
                                             38));
  EXPECT_EQ(bytes.substr(38), "\x31\x0e\x7b\x7c\x06\xbc\x2f\x4b\x62\xd1\x4d\xfd\xfe\xe9\xc6\x51");
}

TEST(Entry, TruncatedAtAnyLengthIsDamage) {
  const std::string bytes = encode_entry(sample_entry());
  for (std::size_t size = 0; size < bytes.size(); ++size) {
    const auto decoded = decode(std::string_view(bytes).substr(0, size));
    EXPECT_FALSE(decoded.value) << size;
    EXPECT_NE(decoded.problem, "") << size;
  }
}

TEST(Entry, AnyFlippedBitIsDamage) {
  const std::string bytes = encode_entry(sample_entry());
  for (std::size_t bit = 0; bit < 8 * bytes.size(); ++bit) {
    std::string flipped = bytes;
    flipped[bit / 8] = static_cast<char>(flipped[bit / 8] ^ (1 << (bit % 8)));
    const auto decoded = decode(flipped);
    EXPECT_FALSE(decoded.value) << bit;
    EXPECT_NE(decoded.problem, "") << bit;
  }
}

TEST(Entry, BytesAfterTheEndAreDamage) {
  EXPECT_FALSE(decode(encode_entry(sample_entry()) + '\0').value);
  EXPECT_FALSE(decode(encode_entry(sample_entry()) + encode_entry(sample_entry())).value);
}

TEST(Entry, SaysWhatIsWrong) {
  const std::string good = encode_entry(sample_entry());
  EXPECT_EQ(decode("").problem, "expected at least 32 bytes, got 0");
  EXPECT_EQ(decode(std::string(100, 'x')).problem, "not an rlk cache entry (wrong magic)");
  std::string version = good;
  version[8] = 9;
  EXPECT_EQ(decode(version).problem, "expected format version 1, got 9");
  std::string sum = good;
  sum.back() = static_cast<char>(sum.back() ^ 1);
  EXPECT_EQ(decode(sum).problem, "wrong checksum");
}

// Sizes whose sum wraps round to the file's size must not be believed.
TEST(Entry, HugeSizesAreDamage) {
  const std::string good = encode_entry(sample_entry());
  for (const std::uint64_t size : {~std::uint64_t{0}, std::uint64_t{1} << 63, max_payload_bytes,
                                   max_payload_bytes + 1, std::uint64_t{1} << 40}) {
    for (const std::size_t at : {std::size_t{16}, std::size_t{24}}) {
      std::string bytes = good;
      set_u64(bytes, at, size);
      EXPECT_FALSE(decode(bytes).value) << size << ' ' << at;
    }
    std::string both = good;
    set_u64(both, 16, size);
    set_u64(both, 24, good.size() - 32 - 16 - 7 - size);
    EXPECT_FALSE(decode(both).value) << size;
  }
}

TEST(Entry, GarbageIsSafe) {
  std::mt19937 random(2);
  const std::string good = encode_entry(sample_entry());
  for (int i = 0; i < 20000; ++i) {
    std::string bytes = good.substr(0, random() % 2 == 0 ? 12 : 32);
    bytes.resize(random() % 200, '\0');
    for (std::size_t k = 12; k < bytes.size(); ++k) {
      if (random() % 3 == 0) bytes[k] = static_cast<char>(random() % 256);
    }
    EXPECT_FALSE(decode(bytes).value);
  }
}

TEST(Entry, SizesAreReadFromTheHeadAlone) {
  const std::string bytes = encode_entry(sample_entry());
  const auto head = std::as_bytes(std::span(bytes)).first(entry_head_bytes);
  EXPECT_EQ(decode_sizes(head, bytes.size()).value, (EntrySizes{7, 12, 13}));
  EXPECT_FALSE(decode_sizes(head, bytes.size() - 1).value);
  EXPECT_FALSE(decode_sizes(head, bytes.size() + 1).value);
}

TEST(Entry, PartsLargerThanTheFormatAllowsAreNotEncoded) {
  EXPECT_THROW(encode_entry({std::string(max_key_bytes + 1, 'k'), "", {}}), InvalidArgument);
  EXPECT_THROW(encode_entry({"", std::string(max_metadata_bytes + 1, 'm'), {}}), InvalidArgument);
  EXPECT_NO_THROW(encode_entry({std::string(max_key_bytes, 'k'), "", {}}));
}

}  // namespace
}  // namespace rlk::cache
