// SPDX-License-Identifier: Apache-2.0
// The processor's FMA peak: independent multiply-adds on registers, no memory. linear_logp.py runs
// one call a thread, all at once, and counts operations over wall time.
#include <cstdint>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace {

// Enough chains for two units of latency 5; few enough for the 16 registers of AVX2.
constexpr int k_chains = 12;

#if defined(__x86_64__)
__attribute__((target("avx512f"))) double run_v4(std::int64_t iterations) {
  __m512 sums[k_chains] = {};
  const __m512 a = _mm512_set1_ps(0.5f), b = _mm512_set1_ps(1.0f);
  for (std::int64_t i = 0; i < iterations; ++i) {
#pragma GCC unroll 12
    for (auto& sum : sums) {
      sum = _mm512_fmadd_ps(sum, a, b);
      asm volatile("" : "+v"(sum));  // else the chains, all alike, are made one
    }
  }
  return 2.0 * 16 * k_chains * static_cast<double>(iterations);
}

__attribute__((target("avx2,fma"))) double run_v3(std::int64_t iterations) {
  __m256 sums[k_chains] = {};
  const __m256 a = _mm256_set1_ps(0.5f), b = _mm256_set1_ps(1.0f);
  for (std::int64_t i = 0; i < iterations; ++i) {
#pragma GCC unroll 12
    for (auto& sum : sums) {
      sum = _mm256_fmadd_ps(sum, a, b);
      asm volatile("" : "+x"(sum));
    }
  }
  return 2.0 * 8 * k_chains * static_cast<double>(iterations);
}
#endif

// Four lanes, a multiply and an add: SSE2 and, contracted, NEON.
double run_base(std::int64_t iterations) {
  typedef float Vector __attribute__((vector_size(16)));
  Vector sums[k_chains] = {};
  for (std::int64_t i = 0; i < iterations; ++i) {
#pragma GCC unroll 12
    for (auto& sum : sums) {
      sum = sum * 0.5f + 1.0f;
#if defined(__x86_64__)
      asm volatile("" : "+x"(sum));
#else
      asm volatile("" : "+w"(sum));
#endif
    }
  }
  return 2.0 * 4 * k_chains * static_cast<double>(iterations);
}

}  // namespace

// Runs so many iterations; returns the floating-point operations that they hold.
extern "C" __attribute__((visibility("default"))) double rlk_fma_flops(std::int64_t iterations) {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512f")) return run_v4(iterations);
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return run_v3(iterations);
#endif
  return run_base(iterations);
}
