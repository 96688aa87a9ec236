// SPDX-License-Identifier: Apache-2.0
// Storage types, and reading of arrays whose type is a run-time code.
#pragma once

#include "common/cuda/ptx.cuh"

namespace rlk {

// Codes of types: constants of templates and fields of arguments. Integers (bool too) have codes
// kSigned or kUnsigned plus their size in bytes.
enum TypeCode : int {
  kNone = 0,
  kFloat32 = 1,
  kBfloat16 = 2,
  kFloat16 = 3,
  kFloat64 = 4,
  kSigned = 16,
  kUnsigned = 32,
};

// The storage type with a code: Type, float conversions and (16 bits) the matrix instruction.
template <int kCode>
struct Element;

template <>
struct Element<kFloat32> {
  using Type = float;
  static RLK_DEVICE float to_float(float x) { return x; }
  static RLK_DEVICE float from_float(float x) { return x; }
};

template <>
struct Element<kBfloat16> {
  using Type = Bits16;
  static RLK_DEVICE float to_float(Bits16 x) { return __uint_as_float(unsigned{x} << 16); }
  static RLK_DEVICE Bits16 from_float(float x) { return cvt_rn_bf16(x); }
  static RLK_DEVICE unsigned pair(float low, float high) { return cvt_rn_bf16x2(low, high); }
  static RLK_DEVICE void mma(float (&c)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
    mma_m16n8k16_bf16(c, a, b0, b1);
  }
};

template <>
struct Element<kFloat16> {
  using Type = Bits16;
  static RLK_DEVICE float to_float(Bits16 x) { return cvt_f32_f16(x); }
  static RLK_DEVICE Bits16 from_float(float x) { return cvt_rn_f16(x); }
  static RLK_DEVICE unsigned pair(float low, float high) { return cvt_rn_f16x2(low, high); }
  static RLK_DEVICE void mma(float (&c)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
    mma_m16n8k16_f16(c, a, b0, b1);
  }
};

// Element i of an array of floats; fp64 is rounded to fp32.
RLK_DEVICE float read_float(const void* array, Int64 i, int code) {
  if (code == kFloat32) return static_cast<const float*>(array)[i];
  if (code == kFloat64) return static_cast<float>(static_cast<const double*>(array)[i]);
  const Bits16 x = static_cast<const Bits16*>(array)[i];
  return code == kBfloat16 ? Element<kBfloat16>::to_float(x) : Element<kFloat16>::to_float(x);
}

// Element i of an array of integers. Unsigned numbers from 2^63 on become the largest Int64.
RLK_DEVICE Int64 read_integer(const void* array, Int64 i, int code) {
  switch (code) {
    case kSigned + 1:
      return static_cast<const signed char*>(array)[i];
    case kSigned + 2:
      return static_cast<const short*>(array)[i];
    case kSigned + 4:
      return static_cast<const int*>(array)[i];
    case kUnsigned + 1:
      return static_cast<const unsigned char*>(array)[i];
    case kUnsigned + 2:
      return static_cast<const unsigned short*>(array)[i];
    case kUnsigned + 4:
      return static_cast<const unsigned*>(array)[i];
    case kUnsigned + 8: {
      const Int64 x = static_cast<const Int64*>(array)[i];
      return x < 0 ? 0x7fffffffffffffffll : x;
    }
    default:
      return static_cast<const Int64*>(array)[i];
  }
}

// Whether element i of a mask, of any type, is not zero.
RLK_DEVICE bool read_mask(const void* array, Int64 i, int code) {
  return code >= kSigned ? read_integer(array, i, code) != 0 : read_float(array, i, code) != 0.0f;
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
