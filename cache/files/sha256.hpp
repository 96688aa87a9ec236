// SPDX-License-Identifier: Apache-2.0
// SHA-256 (FIPS 180-4), by which a pack is known: no library that every machine of rlk has offers
// it (LLVM's is hidden in the CPU compiler, which a GPU image lacks).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace rlk::cache {

class Sha256 {
 public:
  using Digest = std::array<unsigned char, 32>;

  void update(std::string_view bytes);

  // Of all bytes so far; more may follow.
  Digest digest() const;

 private:
  static constexpr std::size_t k_block_bytes = 64;

  void add_block(const unsigned char* block);

  std::array<std::uint32_t, 8> state_{0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                      0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
  std::array<unsigned char, k_block_bytes> rest_{};  // bytes that fill no block yet
  std::uint64_t num_bytes_ = 0;
};

}  // namespace rlk::cache
