// SPDX-License-Identifier: Apache-2.0
// What every CUDA template starts from. Templates have no other headers than these.
#pragma once

#define RLK_DEVICE __device__ __forceinline__

namespace rlk {

using Int64 = long long;
using Bits16 = unsigned short;

template <class T>
RLK_DEVICE constexpr T min(T a, T b) {
  return a < b ? a : b;
}
RLK_DEVICE constexpr Int64 ceil_div(Int64 a, Int64 b) { return (a + b - 1) / b; }

// body(i) for i from 0 to kEnd - 1, each a constant: written out whatever its length, where the
// compiler would keep a long loop, and with it an index into registers.
template <int kValue>
struct Constant {
  static constexpr int kIndex = kValue;
  RLK_DEVICE constexpr operator int() const { return kValue; }
};
template <int kEnd, int kBegin = 0, class Body>
RLK_DEVICE void unrolled(Body&& body) {
  if constexpr (kBegin < kEnd) {
    body(Constant<kBegin>());
    unrolled<kEnd, kBegin + 1>(body);
  }
}

constexpr unsigned kFullWarp = 0xffffffffu;
constexpr unsigned kInfinityBits = 0x7f800000u;
constexpr unsigned kNanBits = 0x7fffffffu;

RLK_DEVICE float infinity() { return __uint_as_float(kInfinityBits); }
RLK_DEVICE float nan() { return __uint_as_float(kNanBits); }

}  // namespace rlk
