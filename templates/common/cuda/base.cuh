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

constexpr unsigned kFullWarp = 0xffffffffu;
constexpr unsigned kInfinityBits = 0x7f800000u;
constexpr unsigned kNanBits = 0x7fffffffu;

RLK_DEVICE float infinity() { return __uint_as_float(kInfinityBits); }
RLK_DEVICE float nan() { return __uint_as_float(kNanBits); }

}  // namespace rlk
