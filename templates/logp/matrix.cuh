// SPDX-License-Identifier: Apache-2.0
// Where rows of logits lie, and their elements.
#pragma once

#include "common/logp/formula.cuh"
#include "logp/cuda_args.h"

namespace rlk {

using Args = LogpCudaArgs;
using T = Element<kX>::Type;

// Row `row` of the call.
RLK_DEVICE T* row_of(const LogpCudaMatrix& m, Int64 row) {
  T* const data = static_cast<T*>(m.data);
  if (m.num_axes == 1) return data + row * m.strides[0];
  Int64 offset = 0;
#pragma unroll 1
  for (int axis = m.num_axes - 1; axis >= 0; --axis) {
    const Int64 rest = row / m.sizes[axis];
    offset += (row - rest * m.sizes[axis]) * m.strides[axis];
    row = rest;
  }
  return data + offset;
}

// kBytes of elements side by side, as registers hold them.
template <int kBytes>
struct Pack {
  static constexpr int kSize = kBytes / int{sizeof(T)};
  unsigned words[kBytes / 4];

  template <class Index>
  RLK_DEVICE float get(Index i) const {
    if constexpr (kX == kFloat32) {
      return __uint_as_float(words[i]);
    } else {
      return Element<kX>::to_float(static_cast<Bits16>(words[i / 2] >> (i % 2 * 16)));
    }
  }
};

RLK_DEVICE unsigned long long address(const void* p) {
  return reinterpret_cast<unsigned long long>(p);
}

}  // namespace rlk
