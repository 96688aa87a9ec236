// SPDX-License-Identifier: Apache-2.0
// Operands that a kernel cannot read as they lie, as copies in the workspace.
#pragma once

#include "templates/common/cuda/copy.h"
#include "templates/common/cuda_memory.hpp"

#include <array>
#include <cstddef>
#include <span>

namespace rlk {

// The copies of a call, in the order in which they were asked for.
class CudaCopies {
 public:
  // A copy of `tensor` [num_axes axes..., cols] with rows of `pitch` elements, to `to` where that
  // is not null.
  void* add(Arena& arena, const Tensor& tensor, int num_axes, Int64 cols, Int64 col_stride,
            Int64 pitch, void* to = nullptr);

  std::size_t size() const { return num_copies_; }
  std::span<const CudaCopy> all() const { return {copies_.data(), num_copies_}; }
  CudaCopy& last() { return copies_[num_copies_ - 1]; }

 private:
  // target, mask, temperature, three gradients; two matrices
  std::array<CudaCopy, 8> copies_{};
  std::size_t num_copies_ = 0;
};

}  // namespace rlk
