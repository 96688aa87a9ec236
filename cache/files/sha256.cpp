// SPDX-License-Identifier: Apache-2.0
// SHA-256 in plain C++; the names are those of FIPS 180-4.
#include "cache/files/sha256.hpp"

#include <algorithm>
#include <bit>
#include <cstring>

namespace rlk::cache {
namespace {

// The first 32 bits of the fractional parts of the cube roots of the first 64 primes.
constexpr std::array<std::uint32_t, 64> k_round = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

template <class Unsigned>
void store_big_endian(Unsigned value, unsigned char* to) {
  for (std::size_t i = 0; i < sizeof(Unsigned); ++i) {
    to[i] = static_cast<unsigned char>(value >> (8 * (sizeof(Unsigned) - 1 - i)));
  }
}

std::uint32_t load_big_endian(const unsigned char* from) {
  return std::uint32_t{from[0]} << 24 | std::uint32_t{from[1]} << 16 | std::uint32_t{from[2]} << 8 |
         std::uint32_t{from[3]};
}

}  // namespace

void Sha256::add_block(const unsigned char* block) {
  std::array<std::uint32_t, 64> w;
  for (std::size_t t = 0; t < 16; ++t) w[t] = load_big_endian(block + 4 * t);
  for (std::size_t t = 16; t < 64; ++t) {
    const auto s0 = std::rotr(w[t - 15], 7) ^ std::rotr(w[t - 15], 18) ^ (w[t - 15] >> 3);
    const auto s1 = std::rotr(w[t - 2], 17) ^ std::rotr(w[t - 2], 19) ^ (w[t - 2] >> 10);
    w[t] = w[t - 16] + s0 + w[t - 7] + s1;
  }
  auto [a, b, c, d, e, f, g, h] = state_;
  for (std::size_t t = 0; t < 64; ++t) {
    const auto sum1 = std::rotr(e, 6) ^ std::rotr(e, 11) ^ std::rotr(e, 25);
    const auto t1 = h + sum1 + ((e & f) ^ (~e & g)) + k_round[t] + w[t];
    const auto sum0 = std::rotr(a, 2) ^ std::rotr(a, 13) ^ std::rotr(a, 22);
    const auto t2 = sum0 + ((a & b) ^ (a & c) ^ (b & c));
    h = g, g = f, f = e, e = d + t1, d = c, c = b, b = a, a = t1 + t2;
  }
  const std::array<std::uint32_t, 8> added = {a, b, c, d, e, f, g, h};
  for (std::size_t i = 0; i < state_.size(); ++i) state_[i] += added[i];
}

void Sha256::update(std::string_view bytes) {
  const std::size_t num_rest = num_bytes_ % k_block_bytes;
  num_bytes_ += bytes.size();
  if (num_rest > 0) {
    const std::size_t num_taken = std::min(bytes.size(), k_block_bytes - num_rest);
    std::memcpy(rest_.data() + num_rest, bytes.data(), num_taken);
    if (num_rest + num_taken < k_block_bytes) return;
    add_block(rest_.data());
    bytes.remove_prefix(num_taken);
  }
  for (; bytes.size() >= k_block_bytes; bytes.remove_prefix(k_block_bytes)) {
    add_block(reinterpret_cast<const unsigned char*>(bytes.data()));
  }
  std::ranges::copy(bytes, rest_.begin());
}

Sha256::Digest Sha256::digest() const {
  Sha256 padded = *this;
  // One bit, zeros up to 8 bytes before a block's end, the length in bits.
  std::array<unsigned char, k_block_bytes + 8> padding{0x80};
  const std::size_t num_zeros =
      (2 * k_block_bytes - 9 - num_bytes_ % k_block_bytes) % k_block_bytes;
  store_big_endian(8 * num_bytes_, padding.data() + 1 + num_zeros);
  padded.update({reinterpret_cast<const char*>(padding.data()), 1 + num_zeros + 8});
  Digest digest;
  for (std::size_t i = 0; i < padded.state_.size(); ++i) {
    store_big_endian(padded.state_[i], digest.data() + 4 * i);
  }
  return digest;
}

}  // namespace rlk::cache
