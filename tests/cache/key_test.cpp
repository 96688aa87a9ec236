// SPDX-License-Identifier: Apache-2.0
#include "cache/key.hpp"

#include <gtest/gtest.h>

#include <random>

namespace rlk::cache {
namespace {

Key sample_key() {
  return KeyBuilder()
      .field("op", "linear_logp")
      .field("text", "linear_logp.fwd[V=128256 D=4096]")
      .field("options", "")
      .finish();
}

TEST(Key, DecodesToItsFieldsInOrder) {
  const std::vector<KeyField> expected = {
      {"op", "linear_logp"}, {"text", "linear_logp.fwd[V=128256 D=4096]"}, {"options", ""}};
  EXPECT_EQ(decode_key(sample_key().bytes), expected);
}

TEST(Key, DigestIsXxh128InHex) {
  EXPECT_EQ(Key{}.digest(), "99aa06d3014798d86001c324468d497f");  // published: XXH3-128 of ""
  EXPECT_EQ(sample_key().digest(), sample_key().digest());
}

// The digest names files on disk: another one would lose every cache.
TEST(Key, SerializationIsFrozen) {
  const Key key = KeyBuilder().field("op", "ab").finish();
  EXPECT_EQ(key.bytes, std::string("\2\0\0\0\0\0\0\0op\2\0\0\0\0\0\0\0ab", 20));
}

TEST(Key, NoTwoFieldListsGiveOneKey) {
  const auto key = [](const std::vector<KeyField>& fields) {
    KeyBuilder builder;
    for (const auto& field : fields) builder.field(field.tag, field.value);
    return builder.finish();
  };
  const std::vector<Key> keys = {
      key({}),
      key({{"", ""}}),
      key({{"a", "bc"}}),
      key({{"ab", "c"}}),
      key({{"abc", ""}}),
      key({{"a", "b"}, {"c", ""}}),
      key({{"a", "b"}, {"", "c"}}),
      key({{"", "c"}, {"a", "b"}}),
      key({{"a", ""}, {"b", "c"}}),
  };
  for (std::size_t i = 0; i < keys.size(); ++i) {
    for (std::size_t j = 0; j < i; ++j) {
      EXPECT_NE(keys[i].bytes, keys[j].bytes) << i << ' ' << j;
      EXPECT_NE(keys[i].digest(), keys[j].digest()) << i << ' ' << j;
    }
  }
}

TEST(Key, BytesOfAnyValueSurvive) {
  std::string all;
  for (int i = 0; i < 256; ++i) all.push_back(static_cast<char>(i));
  const auto fields = decode_key(KeyBuilder().field(all, all).finish().bytes);
  ASSERT_TRUE(fields);
  EXPECT_EQ(fields->at(0), (KeyField{all, all}));
}

TEST(Key, CutShortDecodesToNothingOrToFewerWholeFields) {
  const std::string bytes = sample_key().bytes;
  const auto whole = *decode_key(bytes);
  for (std::size_t size = 0; size < bytes.size(); ++size) {
    const auto fields = decode_key(std::string_view(bytes).substr(0, size));
    if (!fields) continue;
    ASSERT_LT(fields->size(), whole.size());
    for (std::size_t i = 0; i < fields->size(); ++i) EXPECT_EQ(fields->at(i), whole[i]);
  }
  EXPECT_FALSE(decode_key(std::string_view(bytes).substr(0, bytes.size() - 1)));
}

TEST(Key, HugeLengthsAreNoKey) {
  EXPECT_FALSE(decode_key(std::string(8, '\xff')));
  EXPECT_FALSE(decode_key(std::string(16, '\xff')));
  EXPECT_FALSE(decode_key(std::string(8, '\0') + std::string(8, '\xff')));
}

TEST(Key, GarbageIsSafe) {
  std::mt19937 random(1);
  for (int i = 0; i < 20000; ++i) {
    std::string bytes(random() % 64, '\0');
    for (char& byte : bytes) byte = static_cast<char>(random() % 4 == 0 ? random() % 256 : 0);
    std::size_t num_bytes = 0;
    if (const auto fields = decode_key(bytes)) {
      for (const auto& field : *fields) num_bytes += 16 + field.tag.size() + field.value.size();
      EXPECT_EQ(num_bytes, bytes.size());
    }
  }
}

}  // namespace
}  // namespace rlk::cache
