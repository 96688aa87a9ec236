// SPDX-License-Identifier: Apache-2.0
// Storage types, and reading of arrays whose type is a run-time code.
#pragma once

#include "common/cuda/ptx.cuh"
#include "common/type_codes.h"

namespace rlk {

// The storage type with a code: Type, float conversions, storing of two elements side by side in
// shared memory and (16 bits) the matrix instruction.
template <int kCode>
struct Element;

template <>
struct Element<kFloat32> {
  using Type = float;
  static RLK_DEVICE float to_float(float x) { return x; }
  static RLK_DEVICE float from_float(float x) { return x; }
  static RLK_DEVICE void store_pair(unsigned to, float x, float y) { st_shared_v2_f32(to, x, y); }
};

template <>
struct Element<kBfloat16> {
  using Type = Bits16;
  static RLK_DEVICE float to_float(Bits16 x) { return __uint_as_float(unsigned{x} << 16); }
  static RLK_DEVICE Bits16 from_float(float x) { return cvt_rn_bf16(x); }
  static RLK_DEVICE void store_pair(unsigned to, float x, float y) {
    st_shared_u32(to, cvt_rn_bf16x2(x, y));
  }
  // Two, as they are side by side in memory.
  static RLK_DEVICE unsigned pack(float x, float y) { return cvt_rn_bf16x2(x, y); }
  static RLK_DEVICE float2 unpack(unsigned bits) {
    return {__uint_as_float(bits << 16), __uint_as_float(bits & 0xffff0000u)};
  }
  static RLK_DEVICE void mma(float (&c)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
    mma_m16n8k16_bf16(c, a, b0, b1);
  }
};

template <>
struct Element<kFloat16> {
  using Type = Bits16;
  static RLK_DEVICE float to_float(Bits16 x) { return cvt_f32_f16(x); }
  static RLK_DEVICE Bits16 from_float(float x) { return cvt_rn_f16(x); }
  static RLK_DEVICE void store_pair(unsigned to, float x, float y) {
    st_shared_u32(to, cvt_rn_f16x2(x, y));
  }
  // Two, as they are side by side in memory.
  static RLK_DEVICE unsigned pack(float x, float y) { return cvt_rn_f16x2(x, y); }
  static RLK_DEVICE float2 unpack(unsigned bits) {
    return {cvt_f32_f16(static_cast<Bits16>(bits)), cvt_f32_f16(static_cast<Bits16>(bits >> 16))};
  }
  static RLK_DEVICE void mma(float (&c)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
    mma_m16n8k16_f16(c, a, b0, b1);
  }
};

// The bits of element i of an array of elements of 1, 2, 4 or 8 bytes.
RLK_DEVICE unsigned long long read_bits(const void* array, Int64 i, int bytes) {
  switch (bytes) {
    case 1:
      return static_cast<const unsigned char*>(array)[i];
    case 2:
      return static_cast<const unsigned short*>(array)[i];
    case 4:
      return static_cast<const unsigned*>(array)[i];
    default:
      return static_cast<const unsigned long long*>(array)[i];
  }
}

// Element i of an array of floats; fp64 is rounded to fp32.
RLK_DEVICE float read_float(const void* array, Int64 i, int code) {
  if (code == kFloat32) return static_cast<const float*>(array)[i];
  if (code == kFloat64) return static_cast<float>(static_cast<const double*>(array)[i]);
  const Bits16 x = static_cast<const Bits16*>(array)[i];
  return code == kBfloat16 ? Element<kBfloat16>::to_float(x) : Element<kFloat16>::to_float(x);
}

// Element i of an array of integers. Unsigned numbers from 2^63 on become the largest Int64.
RLK_DEVICE Int64 read_integer(const void* array, Int64 i, int code) {
  const int bytes = code & 15;
  const Int64 bits = static_cast<Int64>(read_bits(array, i, bytes));
  const int unused = 64 - 8 * bytes;
  if (code & kSigned) return bits << unused >> unused;
  return bits < 0 ? 0x7fffffffffffffffll : bits;
}

// Whether element i of a mask, of any type, is not zero.
RLK_DEVICE bool read_mask(const void* array, Int64 i, int code) {
  if (code >= kSigned) return read_bits(array, i, code & 15) != 0;
  const int bytes = code == kFloat32 ? 4 : code == kFloat64 ? 8 : 2;
  return read_bits(array, i, bytes) << (65 - 8 * bytes) != 0;  // without the sign
}

template <int kCode>
RLK_DEVICE void write_float(void* array, Int64 i, float x) {
  static_cast<typename Element<kCode>::Type*>(array)[i] = Element<kCode>::from_float(x);
}
RLK_DEVICE void write_float(void* array, Int64 i, float x, int code) {
  if (code == kFloat32) return write_float<kFloat32>(array, i, x);
  if (code == kBfloat16) return write_float<kBfloat16>(array, i, x);
  write_float<kFloat16>(array, i, x);
}

}  // namespace rlk
