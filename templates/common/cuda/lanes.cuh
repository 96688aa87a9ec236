// SPDX-License-Identifier: Apache-2.0
// What common/cpu/vector.h names, for one lane: code of common/loss/ is written once for both.
#pragma once

#include "common/cuda/ptx.cuh"

#define RLK_INLINE RLK_DEVICE

namespace rlk {

using VecF = float;
using VecI = int;
using Mask = bool;

RLK_INLINE float splat(float x) { return x; }
RLK_INLINE int bits(float x) { return __float_as_int(x); }
RLK_INLINE float from_bits(int x) { return __int_as_float(x); }
RLK_INLINE float fma(float a, float b, float c) { return fma_rn(a, b, c); }
RLK_INLINE float select(bool mask, float yes, float no) { return mask ? yes : no; }
RLK_INLINE float magnitude(float x) { return abs_f32(x); }

}  // namespace rlk
