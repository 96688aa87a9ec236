// SPDX-License-Identifier: Apache-2.0
// Wrappers of PTX instructions that exist on sm_90a, each with the instruction's name: barriers in
// shared memory, copies by tensor map, matrix products of a warpgroup.
#pragma once

#include "common/cuda/ptx.cuh"
#include "common/cuda/tensor_map.h"

namespace rlk {

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
constexpr bool kHasWgmma = true;
#else
constexpr bool kHasWgmma = false;
#endif

RLK_DEVICE void mbarrier_init(unsigned barrier, unsigned count) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(count) : "memory");
}
// Makes what mbarrier_init wrote known to the copies.
RLK_DEVICE void fence_mbarrier_init() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
RLK_DEVICE void mbarrier_arrive(unsigned barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}
RLK_DEVICE void mbarrier_arrive_expect_tx(unsigned barrier, unsigned bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
               : "memory");
}
// Until the phase of this parity is over. At most one phase may pass unseen.
RLK_DEVICE void mbarrier_wait(unsigned barrier, unsigned parity) {
  unsigned done;
  do {
    asm volatile(
        "{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; "
        "selp.u32 %0, 1, 0, p; }"
        : "=r"(done)
        : "r"(barrier), "r"(parity)
        : "memory");
  } while (done == 0);
}

// Four matrices of 8 x 8, rows of which the threads of each eight give the addresses of.
RLK_DEVICE void stmatrix_x4(unsigned to, const unsigned (&x)[4]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(to),
               "r"(x[0]), "r"(x[1]), "r"(x[2]), "r"(x[3])
               : "memory");
}

RLK_DEVICE void prefetch_tensormap(const TensorMap& map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory");
}
// A box from column x, row y of a matrix; what lies outside is zero and counts as copied.
RLK_DEVICE void cp_async_bulk_tensor_2d(unsigned to, const TensorMap& map, int x, int y,
                                        unsigned barrier) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes "
      "[%0], [%1, {%2, %3}], [%4];" ::"r"(to),
      "l"(&map), "r"(x), "r"(y), "r"(barrier)
      : "memory");
}
// Into the same place, and counted at the same barrier, of each block of the cluster whose bit is
// set.
RLK_DEVICE void cp_async_bulk_tensor_2d_multicast(unsigned to, const TensorMap& map, int x, int y,
                                                  unsigned barrier, unsigned short blocks) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes"
      ".multicast::cluster [%0], [%1, {%2, %3}], [%4], %5;" ::"r"(to),
      "l"(&map), "r"(x), "r"(y), "r"(barrier), "h"(blocks)
      : "memory");
}

// Of this block in its cluster.
RLK_DEVICE unsigned cluster_ctarank() {
  unsigned rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}
// At the barrier of the same place in a block of the cluster. Ordered as CUTLASS does: qualified as
// a release of the cluster it takes as long as a stage.
RLK_DEVICE void mbarrier_arrive_cluster(unsigned barrier, unsigned block) {
  asm volatile(
      "{ .reg .b32 remote; mapa.shared::cluster.u32 remote, %0, %1; "
      "mbarrier.arrive.shared::cluster.b64 _, [remote]; }" ::"r"(barrier),
      "r"(block)
      : "memory");
}
// All threads of the cluster; those of a warp need not come together.
RLK_DEVICE void barrier_cluster() {
  asm volatile("barrier.cluster.arrive.release; barrier.cluster.wait.acquire;" ::: "memory");
}

// Barrier `id` (1 to 15) of `threads` threads, of which this one waits or does not wait.
RLK_DEVICE void bar_sync(int id, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}
RLK_DEVICE void bar_arrive(int id, int threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

// Registers of each thread of the warpgroup from here on.
template <int kRegisters>
RLK_DEVICE void setmaxnreg_dec() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}
template <int kRegisters>
RLK_DEVICE void setmaxnreg_inc() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

RLK_DEVICE void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
RLK_DEVICE void wgmma_commit_group() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
template <int kPending>
RLK_DEVICE void wgmma_wait_group() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}

// The first kN columns of c = a * b, plus c where `add` is not 0: a 64 x 16 and b 16 x kN by shared
// memory descriptors. kLanesA, kLanesB: 1 where the operand runs along its lanes in shared memory,
// 0 along the terms.
#define RLK_ACC8(i)                                                                           \
  "+f"(c[i]), "+f"(c[i + 1]), "+f"(c[i + 2]), "+f"(c[i + 3]), "+f"(c[i + 4]), "+f"(c[i + 5]), \
      "+f"(c[i + 6]), "+f"(c[i + 7])
#define RLK_ACC16(i) RLK_ACC8(i), RLK_ACC8(i + 8)
#define RLK_ACC32(i) RLK_ACC16(i), RLK_ACC16(i + 16)
#define RLK_ACC64(i) RLK_ACC32(i), RLK_ACC32(i + 32)
#define RLK_TEXT16 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15"
#define RLK_TEXT32                                     \
  RLK_TEXT16                                           \
  ", %16, %17, %18, %19, %20, %21, %22, %23, %24, %25" \
  ", %26, %27, %28, %29, %30, %31"
#define RLK_TEXT64                                            \
  RLK_TEXT32                                                  \
  ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, " \
  "%43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, "   \
  "%54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define RLK_TEXT96                                            \
  RLK_TEXT64                                                  \
  ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, " \
  "%75, %76, %77, %78, %79, %80, %81, %82, %83, %84, %85, "   \
  "%86, %87, %88, %89, %90, %91, %92, %93, %94, %95"
#define RLK_TEXT128                                              \
  RLK_TEXT96                                                     \
  ", %96, %97, %98, %99, %100, %101, %102, %103, %104, %105, "   \
  "%106, %107, %108, %109, %110, %111, %112, %113, %114, %115, " \
  "%116, %117, %118, %119, %120, %121, %122, %123, %124, %125, " \
  "%126, %127"
// a, b, add and the two flags follow the accumulators.
#define RLK_WGMMA(n, type, text, a_, b_, add_, lanes_a, lanes_b, ...)                             \
  asm volatile("{ .reg .pred p; setp.ne.b32 p, %" add_ ", 0; wgmma.mma_async.sync.aligned.m64n" n \
               "k16.f32." type "." type " {" text "}, %" a_ ", %" b_ ", p, 1, 1, %" lanes_a       \
               ", %" lanes_b "; }"                                                                \
               : __VA_ARGS__                                                                      \
               : "l"(a), "l"(b), "r"(add), "n"(kLanesA), "n"(kLanesB))
#define RLK_WGMMA_OF_16(type) \
  RLK_WGMMA("32", type, RLK_TEXT16, "16", "17", "18", "19", "20", RLK_ACC16(0))
#define RLK_WGMMA_OF_32(type) \
  RLK_WGMMA("64", type, RLK_TEXT32, "32", "33", "34", "35", "36", RLK_ACC32(0))
#define RLK_WGMMA_OF_64(type) \
  RLK_WGMMA("128", type, RLK_TEXT64, "64", "65", "66", "67", "68", RLK_ACC64(0))
#define RLK_WGMMA_OF_96(type) \
  RLK_WGMMA("192", type, RLK_TEXT96, "96", "97", "98", "99", "100", RLK_ACC64(0), RLK_ACC32(64))
#define RLK_WGMMA_OF_128(type)                                                         \
  RLK_WGMMA("256", type, RLK_TEXT128, "128", "129", "130", "131", "132", RLK_ACC64(0), \
            RLK_ACC64(64))
#define RLK_WGMMA_M64K16(type)      \
  static_assert(kN <= 2 * kSums);   \
  if constexpr (kN == 32) {         \
    RLK_WGMMA_OF_16(type);          \
  } else if constexpr (kN == 64) {  \
    RLK_WGMMA_OF_32(type);          \
  } else if constexpr (kN == 128) { \
    RLK_WGMMA_OF_64(type);          \
  } else if constexpr (kN == 192) { \
    RLK_WGMMA_OF_96(type);          \
  } else {                          \
    static_assert(kN == 256);       \
    RLK_WGMMA_OF_128(type);         \
  }
template <int kN, int kLanesA, int kLanesB, int kSums>
RLK_DEVICE void wgmma_m64k16_bf16(float (&c)[kSums], unsigned long long a, unsigned long long b,
                                  int add) {
  RLK_WGMMA_M64K16("bf16");
}
template <int kN, int kLanesA, int kLanesB, int kSums>
RLK_DEVICE void wgmma_m64k16_f16(float (&c)[kSums], unsigned long long a, unsigned long long b,
                                 int add) {
  RLK_WGMMA_M64K16("f16");
}
#undef RLK_WGMMA_M64K16
#undef RLK_WGMMA_OF_128
#undef RLK_WGMMA_OF_96
#undef RLK_WGMMA_OF_64
#undef RLK_WGMMA_OF_32
#undef RLK_WGMMA_OF_16
#undef RLK_WGMMA
#undef RLK_TEXT128
#undef RLK_TEXT96
#undef RLK_TEXT64
#undef RLK_TEXT32
#undef RLK_TEXT16
#undef RLK_ACC64
#undef RLK_ACC32
#undef RLK_ACC16
#undef RLK_ACC8

}  // namespace rlk
