// SPDX-License-Identifier: Apache-2.0
// Wrappers of single PTX instructions, each with the instruction's name. All exist from sm_80 on.
#pragma once

#include "common/cuda/base.cuh"

namespace rlk {

// The index of the thread, read anew: no register need hold it from one use to the next.
RLK_DEVICE int thread_index() {
  int x;
  asm volatile("mov.u32 %0, %%tid.x;" : "=r"(x));
  return x;
}

// The same value, of which the compiler knows nothing: a loop with a condition on it is not written
// out once for each case.
template <class T>
RLK_DEVICE T opaque(T x) {
  if constexpr (sizeof(T) == 8) {
    asm volatile("" : "+l"(x));
  } else {
    asm volatile("" : "+r"(x));
  }
  return x;
}

// A shared memory address as the 32-bit number that the instructions below take.
RLK_DEVICE unsigned shared_address(const void* pointer) {
  return static_cast<unsigned>(__cvta_generic_to_shared(pointer));
}

// Plain accesses to shared memory, of which the compiler knows only their order: it spends no time
// on what else they may touch.
RLK_DEVICE void st_shared_v2_f32(unsigned to, float x, float y) {
  asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(to), "f"(x), "f"(y));
}
RLK_DEVICE void st_shared_u32(unsigned to, unsigned x) {
  asm volatile("st.shared.u32 [%0], %1;" ::"r"(to), "r"(x));
}
RLK_DEVICE void st_shared(unsigned to, const unsigned (&x)[2]) {
  asm volatile("st.shared.v2.u32 [%0], {%1, %2};" ::"r"(to), "r"(x[0]), "r"(x[1]));
}
RLK_DEVICE void st_shared(unsigned to, const unsigned (&x)[4]) {
  asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(x[0]), "r"(x[1]),
               "r"(x[2]), "r"(x[3]));
}
RLK_DEVICE void ld_shared(unsigned (&x)[4], unsigned from) {
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
               : "r"(from));
}
RLK_DEVICE float ld_shared_f32(unsigned from) {
  float x;
  asm volatile("ld.shared.f32 %0, [%1];" : "=f"(x) : "r"(from));
  return x;
}
RLK_DEVICE float4 ld_shared_v4_f32(unsigned from) {
  float4 x;
  asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(x.x), "=f"(x.y), "=f"(x.z), "=f"(x.w)
               : "r"(from));
  return x;
}
RLK_DEVICE const char* ld_shared_pointer(unsigned from) {
  const char* x;
  asm volatile("ld.shared.u64 %0, [%1];" : "=l"(x) : "r"(from));
  return x;
}
template <class T>
RLK_DEVICE T ld_shared_one(unsigned from) {
  T x;
  if constexpr (sizeof(T) == 4) {
    asm volatile("ld.shared.f32 %0, [%1];" : "=f"(x) : "r"(from));
  } else {
    asm volatile("ld.shared.u16 %0, [%1];" : "=h"(x) : "r"(from));
  }
  return x;
}

// Global memory that is read or written once: it stays in no cache of the multiprocessor.
RLK_DEVICE void ld_stream(unsigned (&x)[2], const void* from) {
  asm volatile("ld.global.L1::no_allocate.v2.u32 {%0, %1}, [%2];"
               : "=r"(x[0]), "=r"(x[1])
               : "l"(from));
}
RLK_DEVICE void ld_stream(unsigned (&x)[4], const void* from) {
  asm volatile("ld.global.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
               : "l"(from));
}
RLK_DEVICE void st_stream(void* to, const unsigned (&x)[4]) {
  asm volatile("st.global.cs.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(to), "r"(x[0]), "r"(x[1]),
               "r"(x[2]), "r"(x[3])
               : "memory");
}

// 0 where it is not.
RLK_DEVICE float ld_global_if(const float* from, bool real) {
  float x;
  asm volatile(
      "{ .reg .pred p; setp.ne.b32 p, %2, 0; mov.f32 %0, 0f00000000; "
      "@p ld.global.f32 %0, [%1]; }"
      : "=f"(x)
      : "l"(from), "r"(static_cast<int>(real))
      : "memory");
  return x;
}
RLK_DEVICE void st_global(void* to, const unsigned (&x)[4]) {
  asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(to), "r"(x[0]), "r"(x[1]),
               "r"(x[2]), "r"(x[3])
               : "memory");
}

// Nothing where it is not.
RLK_DEVICE void st_global_if(void* to, const unsigned (&x)[4], bool real) {
  asm volatile(
      "{ .reg .pred p; setp.ne.b32 p, %5, 0; @p st.global.v4.u32 [%0], {%1, %2, %3, %4}; }" ::"l"(
          to),
      "r"(x[0]), "r"(x[1]), "r"(x[2]), "r"(x[3]), "r"(static_cast<int>(real))
      : "memory");
}

RLK_DEVICE void prefetch_l2(const void* p) { asm volatile("prefetch.global.L2 [%0];" ::"l"(p)); }

// 16 bytes, the first `bytes` of them read from `from` and the others zero.
RLK_DEVICE void cp_async_cg(unsigned to, const void* from, int bytes) {
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(to), "l"(from),
               "r"(bytes)
               : "memory");
}
RLK_DEVICE void cp_async_commit_group() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int kPending>
RLK_DEVICE void cp_async_wait_group() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

RLK_DEVICE void ldmatrix_x4(unsigned (&d)[4], unsigned address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
               : "r"(address));
}
RLK_DEVICE void ldmatrix_x4_trans(unsigned (&d)[4], unsigned address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
               : "r"(address));
}

// c += a * b; a is 16 x 16, b 16 x 8.
RLK_DEVICE void mma_m16n8k16_bf16(float (&c)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
RLK_DEVICE void mma_m16n8k16_f16(float (&c)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

RLK_DEVICE float ex2_approx(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
// The larger; the other one where one is NaN.
RLK_DEVICE float max_f32(float a, float b) {
  float c;
  asm("max.f32 %0, %1, %2;" : "=f"(c) : "f"(a), "f"(b));
  return c;
}
RLK_DEVICE float fma_rn(float a, float b, float c) {
  float d;
  asm("fma.rn.f32 %0, %1, %2, %3;" : "=f"(d) : "f"(a), "f"(b), "f"(c));
  return d;
}
// 1 / x, correctly rounded.
RLK_DEVICE float rcp_rn(float x) {
  float y;
  asm("rcp.rn.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
// 1 / x to within an ulp; inf gives 0.
RLK_DEVICE float rcp_approx(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
RLK_DEVICE float abs_f32(float x) {
  float y;
  asm("abs.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
RLK_DEVICE float shfl_xor(float x, int lanes) { return __shfl_xor_sync(kFullWarp, x, lanes); }

RLK_DEVICE float cvt_f32_f16(Bits16 x) {
  float y;
  asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x));
  return y;
}
RLK_DEVICE Bits16 cvt_rn_f16(float x) {
  Bits16 y;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(y) : "f"(x));
  return y;
}
RLK_DEVICE Bits16 cvt_rn_bf16(float x) {
  Bits16 y;
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(y) : "f"(x));
  return y;
}
// Two at once, `low` into the low half.
RLK_DEVICE unsigned cvt_rn_f16x2(float low, float high) {
  unsigned y;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(y) : "f"(high), "f"(low));
  return y;
}
RLK_DEVICE unsigned cvt_rn_bf16x2(float low, float high) {
  unsigned y;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(y) : "f"(high), "f"(low));
  return y;
}

}  // namespace rlk
