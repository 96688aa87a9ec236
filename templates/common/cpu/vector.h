// SPDX-License-Identifier: Apache-2.0
// Vectors of RLK_VL floats and the operations on them that CPU templates use.
//
// RLK_VL is the vector length of the level, RLK_FMA says whether it has fused multiply-add.
// Compiled with -ffp-contract=off: what is fused is written as fma(), so bits do not follow the
// compiler.
#pragma once

#ifndef RLK_VL
#error "RLK_VL must be 16, 8 or 4"
#endif

// Vectors are passed between inlined functions only, so their calling convention does not matter.
#pragma clang diagnostic ignored "-Wpsabi"

#define RLK_INLINE static inline __attribute__((always_inline))
#define RLK_INLINE_MEMBER inline __attribute__((always_inline))

namespace rlk {

using Int32 = __INT32_TYPE__;
using UInt16 = __UINT16_TYPE__;
using UInt32 = __UINT32_TYPE__;

constexpr __INT64_TYPE__ kLanes = RLK_VL;

using VecF = float __attribute__((ext_vector_type(RLK_VL)));
using VecI = Int32 __attribute__((ext_vector_type(RLK_VL)));
using VecU = UInt32 __attribute__((ext_vector_type(RLK_VL)));
using VecU16 = UInt16 __attribute__((ext_vector_type(RLK_VL)));
using Mask = VecI;  // of a comparison: all ones or all zeros a lane

RLK_INLINE VecF splat(float x) { return static_cast<VecF>(x); }
RLK_INLINE VecI splat_int(Int32 x) { return static_cast<VecI>(x); }

RLK_INLINE VecI bits(VecF x) { return __builtin_bit_cast(VecI, x); }
RLK_INLINE VecF from_bits(VecI x) { return __builtin_bit_cast(VecF, x); }

// Panel matrices are aligned to whole vectors; operands of the caller are not.
RLK_INLINE VecF load(const float* p) { return *reinterpret_cast<const VecF*>(p); }
RLK_INLINE void store(float* p, VecF x) { *reinterpret_cast<VecF*>(p) = x; }
RLK_INLINE VecF load_unaligned(const float* p) {
  VecF x;
  __builtin_memcpy_inline(&x, p, sizeof x);
  return x;
}
RLK_INLINE void store_unaligned(float* p, VecF x) { __builtin_memcpy_inline(p, &x, sizeof x); }

// The first `count` lanes from p, zeros in the others.
RLK_INLINE VecF load_some(const float* p, long long count) {
  if (count >= kLanes) return load_unaligned(p);
  VecF x = 0.0f;
#pragma clang loop unroll(disable)
  for (long long i = 0; i < count; ++i) x[i] = p[i];
  return x;
}
RLK_INLINE void store_some(float* p, VecF x, long long count) {
  if (count >= kLanes) return store_unaligned(p, x);
#pragma clang loop unroll(disable)
  for (long long i = 0; i < count; ++i) p[i] = x[i];
}

RLK_INLINE VecF fma(VecF a, VecF b, VecF c) {
#if RLK_FMA
  return __builtin_elementwise_fma(a, b, c);
#else
  return a * b + c;
#endif
}

RLK_INLINE VecF select(Mask mask, VecF yes, VecF no) { return mask ? yes : no; }
RLK_INLINE VecF magnitude(VecF x) { return from_bits(bits(x) & 0x7fffffff); }

}  // namespace rlk
