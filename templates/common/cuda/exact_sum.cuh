// SPDX-License-Identifier: Apache-2.0
// Exact sums over a block: see common/loss/exact.h. A thread adds terms below 8 to integers of its
// own; larger ones go to shared memory, where integer atomics know no order either.
#pragma once

#include "common/cuda/lanes.cuh"
#include "common/loss/exact.h"

namespace rlk {

RLK_DEVICE float cvt_rni(float x) {
  float y;
  asm("cvt.rni.f32.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
RLK_DEVICE long long cvt_rni_s64(float x) {
  long long y;
  asm("cvt.rni.s64.f32 %0, %1;" : "=l"(y) : "f"(x));
  return y;
}
RLK_DEVICE long long shfl_xor(long long x, int lanes) {
  return __shfl_xor_sync(kFullWarp, x, lanes);
}

// A sum as limbs of 32 bits each, carries not yet taken; the last is signed.
RLK_DEVICE ExactSum exact_limbs(const unsigned long long* limbs, unsigned special) {
  ExactSum sum{0, 0, special};
  const unsigned long long second = limbs[1] + (limbs[0] >> 32);
  const unsigned long long third = limbs[2] + (second >> 32);
  const long long top = static_cast<long long>(limbs[3] + (third >> 32));
  sum.low = second << 32 | (limbs[0] & 0xffffffffu);
  sum.high =
      static_cast<long long>(static_cast<unsigned long long>(top) << 32 | (third & 0xffffffffu));
  if (top != static_cast<int>(top)) sum.special |= top < 0 ? ExactSum::kMinusInf : ExactSum::kInf;
  return sum;
}

// What a block of up to 1024 threads shares for sums of kRows kinds. All threads clear() first.
template <int kRows>
struct ExactBlock {
  unsigned long long limbs[kRows][4];  // of exact_limbs()
  unsigned special[kRows];
  ExactSum warps[kRows][32];

  RLK_DEVICE void clear() {
    for (int i = threadIdx.x; i < kRows * 4; i += blockDim.x) limbs[i / 4][i % 4] = 0;
    for (int i = threadIdx.x; i < kRows; i += blockDim.x) special[i] = 0;
    __syncthreads();
  }

  __device__ __noinline__ void add_large(int row, float x, int bits_of_unit) {
    const ExactSum term = exact_large(x, bits_of_unit);
    if (term.special) {
      atomicOr(&special[row], static_cast<unsigned>(term.special));
      return;
    }
    const auto high = static_cast<unsigned long long>(term.high);
    atomicAdd(&limbs[row][0], term.low & 0xffffffffu);
    atomicAdd(&limbs[row][1], term.low >> 32);
    atomicAdd(&limbs[row][2], high & 0xffffffffu);
    atomicAdd(&limbs[row][3], static_cast<unsigned long long>(term.high >> 32));
  }

  // The sum of a row, by one thread after a barrier behind store().
  RLK_DEVICE ExactSum total(int row) const {
    ExactSum sum = exact_limbs(limbs[row], special[row]);
#pragma unroll 1
    for (int warp = 0; warp < static_cast<int>(blockDim.x / 32); ++warp) add(sum, warps[row][warp]);
    return sum;
  }
};

// The sum of x over the lanes of a warp, times 2^shift, in every lane. In pieces of 27 bits, of
// which 32 make no more than 32.
RLK_DEVICE ExactSum sum_of_warp(long long x, int shift) {
  constexpr unsigned kPiece = (1u << 27) - 1;
  const unsigned low = __reduce_add_sync(kFullWarp, static_cast<unsigned>(x) & kPiece);
  const unsigned middle = __reduce_add_sync(kFullWarp, static_cast<unsigned>(x >> 27) & kPiece);
  const int high = __reduce_add_sync(kFullWarp, static_cast<int>(x >> 54));
  const long long lower = static_cast<long long>(middle) * (1ll << 27) + low;
  ExactSum sum = exact_integer(lower & 0xffffffffll, shift);
  add(sum, exact_integer((lower >> 32) + high * (1ll << 22), shift + 32));
  return sum;
}

// Whether a term is not below 8, NaN too.
RLK_DEVICE bool is_large_term(float magnitude) { return !(magnitude < 8.0f); }

// A term of magnitude below 8 in units of 2^-40, and with kTermBits what is left in those of 2^-72.
struct ExactTerm {
  long long coarse, fine;
};

template <int kBits>
RLK_DEVICE ExactTerm exact_small(float x) {
  const float scaled = x * 0x1p40f;
  if constexpr (kBits == kMetricBits) return {cvt_rni_s64(scaled), 0};
  const float whole = cvt_rni(scaled);
  return {cvt_rni_s64(whole), cvt_rni_s64(fma_rn(whole, -0x1p-40f, x) * 0x1p72f)};
}

// A thread's part of a row.
template <int kBits>
class ExactLane {
 public:
  RLK_DEVICE ExactLane() = default;
  // The magnitudes of terms, by their sum and that of those below 0.
  RLK_DEVICE ExactLane(const ExactLane& all, const ExactLane& negative)
      : coarse_(all.coarse_ - 2 * negative.coarse_), fine_(all.fine_ - 2 * negative.fine_) {}

  RLK_DEVICE void add(const ExactTerm& term) {
    coarse_ += term.coarse;
    if constexpr (kBits == kTermBits) fine_ += term.fine;
  }
  // Three integers are added in the time of two.
  RLK_DEVICE void add(const ExactTerm& first, const ExactTerm& second) {
    coarse_ = coarse_ + first.coarse + second.coarse;
    if constexpr (kBits == kTermBits) fine_ = fine_ + first.fine + second.fine;
  }

  // |x| below 8.
  static RLK_DEVICE ExactTerm exact(float x) { return exact_small<kBits>(x); }
  RLK_DEVICE void add_small(float x) { add(exact(x)); }

  // Any x.
  template <int kRows>
  RLK_DEVICE void add(ExactBlock<kRows>& block, int row, float x) {
    if (is_large_term(magnitude(x))) {
      block.add_large(row, x, kBits);
    } else {
      add_small(x);
    }
  }

  // All threads of the block.
  template <int kRows>
  RLK_DEVICE void store(ExactBlock<kRows>& block, int row) const {
    ExactSum sum = sum_of_warp(coarse_, kBits - kMetricBits);
    if constexpr (kBits == kTermBits) rlk::add(sum, sum_of_warp(fine_, 0));
    if (threadIdx.x % 32 == 0) block.warps[row][threadIdx.x / 32] = sum;
  }

 private:
  long long coarse_ = 0, fine_ = 0;  // in units of 2^-40 and 2^-72
};

}  // namespace rlk
