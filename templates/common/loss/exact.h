// SPDX-License-Identifier: Apache-2.0
// Sums that do not depend on the order of their terms: 128-bit integers of a fixed unit.
//
// A term x becomes the integer nearest to x * 2^bits (ties to even), bits being kTermBits or
// kMetricBits. NaN, infinities and what is out of range set a flag of their own and no integer.
#pragma once

namespace rlk {

constexpr int kTermBits = 72;    // terms of the loss: |sum| < 2^55
constexpr int kMetricBits = 40;  // metrics: |sum| < 2^87

struct ExactSum {
  enum Special : long long { kNan = 1, kInf = 2, kMinusInf = 4 };
  unsigned long long low;
  long long high;
  long long special;  // flags
};

RLK_INLINE void add(ExactSum& sum, const ExactSum& term) {
  const unsigned long long low = sum.low + term.low;
  const unsigned long long high = static_cast<unsigned long long>(sum.high) +
                                  static_cast<unsigned long long>(term.high) +
                                  (low < term.low ? 1u : 0u);
  const long long signed_high = static_cast<long long>(high);
  sum.special |= term.special;
  // Two summands of one sign whose sum has the other.
  if (((sum.high ^ signed_high) & (term.high ^ signed_high)) < 0) {
    sum.special |= signed_high < 0 ? ExactSum::kInf : ExactSum::kMinusInf;
  }
  sum.low = low;
  sum.high = signed_high;
}

// An integer times 2^shift, shift 0, 32 or 64.
RLK_INLINE ExactSum exact_integer(long long value, int shift) {
  if (shift == 0) return {static_cast<unsigned long long>(value), value < 0 ? -1ll : 0ll, 0};
  if (shift == 64) return {0, value, 0};
  return {static_cast<unsigned long long>(value) << 32, value >> 32, 0};
}

// x of at least 4 in magnitude, or NaN: its last bit is worth at least 2^-21.
RLK_INLINE ExactSum exact_large(float x, int bits_of_unit) {
  const unsigned all = __builtin_bit_cast(unsigned, x);
  const int exponent = static_cast<int>(all >> 23 & 255);
  if (x != x) return {0, 0, ExactSum::kNan};
  const int shift = exponent - 150 + bits_of_unit;
  const bool negative = (all >> 31) != 0;
  if (shift > 102) return {0, 0, negative ? ExactSum::kMinusInf : ExactSum::kInf};
  const unsigned long long mantissa = (all & 0x7fffffu) | 0x800000u;
  unsigned long long low = shift < 64 ? mantissa << shift : 0;
  unsigned long long high = shift >= 64 ? mantissa << (shift - 64) : mantissa >> (64 - shift);
  if (negative) {
    low = ~low + 1;
    high = ~high + (low == 0 ? 1u : 0u);
  }
  return {low, static_cast<long long>(high), 0};
}

// The sum in fp32. A negative one is converted without its sign: else the words of a small one all
// but cancel, rounded.
RLK_INLINE float exact_value(const ExactSum& sum, int bits_of_unit) {
  const bool inf = (sum.special & ExactSum::kInf) != 0;
  const bool minus_inf = (sum.special & ExactSum::kMinusInf) != 0;
  if ((sum.special & ExactSum::kNan) != 0 || (inf && minus_inf))
    return __builtin_bit_cast(float, 0x7fc00000u);
  if (inf) return __builtin_bit_cast(float, 0x7f800000u);
  if (minus_inf) return __builtin_bit_cast(float, 0xff800000u);
  const double unit = bits_of_unit == kTermBits ? 0x1p-72 : 0x1p-40;
  const bool negative = sum.high < 0;
  const auto sign = negative ? ~0ull : 0ull;
  const unsigned long long low = (sum.low ^ sign) - sign;
  const unsigned long long high =
      (static_cast<unsigned long long>(sum.high) ^ sign) + (negative && low == 0 ? 1u : 0u);
  const double value = static_cast<double>(high) * 0x1p64 + static_cast<double>(low);
  return static_cast<float>((negative ? -value : value) * unit);
}

// As metrics carry it: two words, the higher first. 2^127 below 0 is no sum: it marks the flags.
RLK_INLINE void store_exact(long long* words, const ExactSum& sum) {
  words[0] = sum.special ? static_cast<long long>(1ull << 63) : sum.high;
  words[1] = sum.special ? sum.special : static_cast<long long>(sum.low);
}

}  // namespace rlk
