// SPDX-License-Identifier: Apache-2.0
// SHA-256 against the examples of FIPS 180-4 and NIST's CAVP, and against itself cut in pieces.
#include "cache/files/sha256.hpp"

#include "cache/files/bytes.hpp"

#include <gtest/gtest.h>

namespace rlk::cache {
namespace {

std::string sha256(std::string_view bytes) {
  Sha256 sum;
  sum.update(bytes);
  return hex(sum.digest());
}

TEST(Sha256Test, TheStandardsExamples) {
  EXPECT_EQ(sha256(""), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(sha256("abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(sha256("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq"),
            "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
  EXPECT_EQ(sha256("abcdefghbcdefghicdefghijdefghijkefghijklfghijklmghijklmnhijklmnoijklmnopjklm"
                   "nopqklmnopqrlmnopqrsmnopqrstnopqrstu"),
            "cf5b16a778af8380036ce59e7b0492370b249b11e8f07a51afac45037afee9d1");
  EXPECT_EQ(sha256("\xbd"), "68325720aabd7c82f30f554b313d0570c95accbb7dc4b5aae11204c08ffe732b");
  EXPECT_EQ(sha256(std::string(1'000'000, 'a')),
            "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

// The edges of padding: lengths around 55, 56 and 64, from NIST's additional vectors.
TEST(Sha256Test, ZerosAroundABlock) {
  EXPECT_EQ(sha256(std::string(55, '\0')),
            "02779466cdec163811d078815c633f21901413081449002f24aa3e80f0b88ef7");
  EXPECT_EQ(sha256(std::string(56, '\0')),
            "d4817aa5497628e7c77e6b606107042bbba3130888c5f47a375e6179be789fbb");
  EXPECT_EQ(sha256(std::string(57, '\0')),
            "65a16cb7861335d5ace3c60718b5052e44660726da4cd13bb745381b235a1785");
  EXPECT_EQ(sha256(std::string(64, '\0')),
            "f5a5fd42d16a20302798ef6ed309979b43003d2320d9f0e8ea9831a92759fb4b");
}

TEST(Sha256Test, PiecesAndQuestionsInBetweenChangeNothing) {
  const std::string text(300, 'x');
  for (std::size_t step = 1; step < 140; ++step) {
    Sha256 sum;
    for (std::size_t at = 0; at < text.size(); at += step) {
      sum.update(std::string_view(text).substr(at, step));
      ASSERT_EQ(hex(sum.digest()), sha256(text.substr(0, at + step))) << step << ' ' << at;
    }
  }
}

}  // namespace
}  // namespace rlk::cache
