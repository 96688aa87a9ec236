// SPDX-License-Identifier: Apache-2.0
// Storage types (fp32, bf16, fp16) to fp32 and back, single elements and spans.
//
// bf16 goes by integer operations at every level, fp16 by F16C where the level has it (v3, v4: all
// levels with fma); elsewhere by integers, so that no compiler library is called. Rounding is to
// nearest even, NaN stays NaN, fp16 overflows to inf, subnormals are right.
#pragma once

#include "vector.h"

namespace rlk {

#if RLK_VL >= 8
using VecH = _Float16 __attribute__((ext_vector_type(RLK_VL)));
#endif

RLK_INLINE VecF widen_bfloat16(VecU16 x) {
  return __builtin_bit_cast(VecF, __builtin_convertvector(x, VecU) << 16);
}

RLK_INLINE VecU16 narrow_bfloat16(VecF x) {
  const VecU u = __builtin_bit_cast(VecU, x);
  const VecU rounded = (u + 0x7fffu + ((u >> 16) & 1u)) >> 16;
  const VecU quiet = (u >> 16) | 0x40u;
  return __builtin_convertvector((x == x) ? rounded : quiet, VecU16);
}

#if RLK_VL >= 8
RLK_INLINE VecF widen_float16(VecU16 x) {
  return __builtin_convertvector(__builtin_bit_cast(VecH, x), VecF);
}
RLK_INLINE VecU16 narrow_float16(VecF x) {
  return __builtin_bit_cast(VecU16, __builtin_convertvector(x, VecH));
}
#else
RLK_INLINE VecF widen_float16(VecU16 x) {
  const VecU h = __builtin_convertvector(x, VecU);
  const VecU sign = (h & 0x8000u) << 16;
  const VecU shifted = (h & 0x7fffu) << 13;
  const VecU exponent = shifted & 0x0f800000u;
  VecU u = shifted + 0x38000000u;                       // rebias: 127 - 15
  u = (exponent == 0x0f800000u) ? u + 0x38000000u : u;  // inf, NaN
  const VecF subnormal =
      __builtin_bit_cast(VecF, shifted + 0x38800000u) - 6.103515625e-5f;  // exact: minus 2^-14
  u = (exponent == 0u) ? __builtin_bit_cast(VecU, subnormal) : u;
  u = ((h & 0x7fffu) > 0x7c00u) ? (u | 0x00400000u) : u;  // quiet NaN
  return __builtin_bit_cast(VecF, u | sign);
}
RLK_INLINE VecU16 narrow_float16(VecF x) {
  const VecU all = __builtin_bit_cast(VecU, x);
  const VecU sign = (all >> 16) & 0x8000u;
  const VecU u = all & 0x7fffffffu;
  const VecU normal = (u + 0xc8000fffu + ((u >> 13) & 1u)) >> 13;  // rebias by -112, round
  // Below 2^-14: adding 1/2 leaves the result, rounded, in the last ten bits.
  const VecU subnormal = __builtin_bit_cast(VecU, __builtin_bit_cast(VecF, u) + 0.5f) - 0x3f000000u;
  VecU h = (u < 0x38800000u) ? subnormal : normal;
  h = (u >= 0x477ff000u) ? static_cast<VecU>(0x7c00u) : h;       // 65520: inf
  h = (u > 0x7f800000u) ? (((u >> 13) & 0x1ffu) | 0x7e00u) : h;  // NaN
  return __builtin_convertvector(h | sign, VecU16);
}
#endif

// Bytes of an element of type code `type`.
RLK_INLINE __INT64_TYPE__ size_of(__INT64_TYPE__ type) { return type == 1 ? 4 : 2; }

RLK_INLINE VecF load_vector(const void* p, __INT64_TYPE__ type) {
  if (type == 1) return load_unaligned(static_cast<const float*>(p));
  VecU16 x;
  __builtin_memcpy_inline(&x, p, sizeof x);
  return type == 2 ? widen_bfloat16(x) : widen_float16(x);
}

RLK_INLINE void store_vector(void* p, VecF x, __INT64_TYPE__ type) {
  if (type == 1) return store_unaligned(static_cast<float*>(p), x);
  const VecU16 y = type == 2 ? narrow_bfloat16(x) : narrow_float16(x);
  __builtin_memcpy_inline(p, &y, sizeof y);
}

RLK_INLINE float load_element(const void* base, __INT64_TYPE__ index, __INT64_TYPE__ type) {
  if (type == 1) return static_cast<const float*>(base)[index];
  VecU16 x = 0;
  x[0] = static_cast<const UInt16*>(base)[index];
  return (type == 2 ? widen_bfloat16(x) : widen_float16(x))[0];
}

RLK_INLINE void store_element(void* base, __INT64_TYPE__ index, float value, __INT64_TYPE__ type) {
  if (type == 1) {
    static_cast<float*>(base)[index] = value;
    return;
  }
  const VecF x = splat(value);
  static_cast<UInt16*>(base)[index] = (type == 2 ? narrow_bfloat16(x) : narrow_float16(x))[0];
}

// count elements from base[offset + i * stride] to dst[i], then zeros up to dst[padded].
RLK_INLINE void load_span(const void* base, __INT64_TYPE__ offset, __INT64_TYPE__ stride,
                          __INT64_TYPE__ type, float* dst, __INT64_TYPE__ count,
                          __INT64_TYPE__ padded) {
  __INT64_TYPE__ i = 0;
  if (stride == 1) {
    const char* src = static_cast<const char*>(base) + offset * size_of(type);
    for (; i + kLanes <= count; i += kLanes)
      store(dst + i, load_vector(src + i * size_of(type), type));
  }
#pragma clang loop unroll(disable)
  for (; i < count; ++i) dst[i] = load_element(base, offset + i * stride, type);
#pragma clang loop unroll(disable)
  for (; i < padded; ++i) dst[i] = 0.0f;
}

// count elements src[i], rounded, to base[offset + i * stride].
RLK_INLINE void store_span(void* base, __INT64_TYPE__ offset, __INT64_TYPE__ stride,
                           __INT64_TYPE__ type, const float* src, __INT64_TYPE__ count) {
  __INT64_TYPE__ i = 0;
  if (stride == 1) {
    char* dst = static_cast<char*>(base) + offset * size_of(type);
    for (; i + kLanes <= count; i += kLanes)
      store_vector(dst + i * size_of(type), load(src + i), type);
  }
#pragma clang loop unroll(disable)
  for (; i < count; ++i) store_element(base, offset + i * stride, src[i], type);
}

}  // namespace rlk
