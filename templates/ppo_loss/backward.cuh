// SPDX-License-Identifier: Apache-2.0
// Entry point of ppo_loss's backward on CUDA; see kernel.cuh.
#pragma once

#include "common/cuda/element.cuh"
#include "common/cuda/lanes.cuh"
#include "common/cuda/overlap.cuh"
#include "ppo_loss/args.h"

namespace rlk {

// Four values side by side, on 16 or 8 bytes.
template <int kCode>
RLK_DEVICE void store_quad(void* to, Int64 quad, float4 x) {
  if constexpr (kCode == kFloat32) {
    static_cast<float4*>(to)[quad] = x;
  } else {
    const auto pair = [](float low, float high) {
      return unsigned{Element<kCode>::from_float(high)} << 16 | Element<kCode>::from_float(low);
    };
    static_cast<uint2*>(to)[quad] = make_uint2(pair(x.x, x.y), pair(x.z, x.w));
  }
}

// A thread a token, or four at once where both arrays allow 16 bytes; they may be one. 0 * inf is
// no gradient of a token that has none; by 1 nothing changes, -0 neither, so that one array is not
// touched.
extern "C" __global__ void __launch_bounds__(256)
    rlk_ppo_loss_bwd_main(const __grid_constant__ PpoLossBackwardArgs a) {
  using E = Element<kX>;
  wait_for_last_launch();
  const float upstream = *a.upstream;
  if (a.grad == a.saved && upstream == 1.0f) return;
  const auto scaled = [&](float x) { return x == 0.0f ? x : upstream * x; };
  const Int64 thread = blockIdx.x * Int64{256} + threadIdx.x, num_threads = gridDim.x * Int64{256};
  auto* const to = static_cast<E::Type*>(a.grad);
  const auto addresses =
      reinterpret_cast<unsigned long long>(a.saved) | reinterpret_cast<unsigned long long>(to);
  const Int64 quads = addresses % 16 == 0 ? a.num_tokens / 4 : 0;
#pragma unroll 1
  for (Int64 q = thread; q < quads; q += num_threads) {
    const float4 x = reinterpret_cast<const float4*>(a.saved)[q];
    store_quad<kX>(to, q, make_float4(scaled(x.x), scaled(x.y), scaled(x.z), scaled(x.w)));
  }
#pragma unroll 1
  for (Int64 t = 4 * quads + thread; t < a.num_tokens; t += num_threads) {
    to[t] = E::from_float(scaled(a.saved[t]));
  }
}

}  // namespace rlk
