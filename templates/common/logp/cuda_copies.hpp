// SPDX-License-Identifier: Apache-2.0
// The values a row of a CUDA call as kernels read them: in place where one stride tells where they
// lie, else copied first.
#pragma once

#include "templates/common/cuda_memory.hpp"
#include "templates/common/logp/call.hpp"
#include "templates/common/logp/cuda_args.h"

#include <array>
#include <span>

namespace rlk {

class LogpCudaCopies {
 public:
  // Everything of a call but `rows`, `error` and `op`, and sizes of the matrix.
  void set_rows(Arena& arena, const LogpCallBase& call, LogpCudaRows& rows);

  // A copy of `tensor` [num_axes axes..., cols] with rows of `pitch` elements.
  void* add(Arena& arena, const Tensor& tensor, int num_axes, Int64 cols, Int64 col_stride,
            Int64 pitch);

  std::size_t size() const { return num_copies_; }
  std::span<const LogpCudaCopy> all() const { return {copies_.data(), num_copies_}; }
  LogpCudaCopy& last() { return copies_[num_copies_ - 1]; }

 private:
  LogpCudaArray per_row(Arena& arena, const Tensor& tensor);

  // target, mask, temperature, three gradients; two matrices
  std::array<LogpCudaCopy, 8> copies_{};
  std::size_t num_copies_ = 0;
};

}  // namespace rlk
