// SPDX-License-Identifier: Apache-2.0
// The arguments of linear_logp's CUDA kernels, and where in the workspace each array lies.
#pragma once

#include "runtime/cuda/tensor_map.hpp"
#include "templates/linear_logp/cuda_args.h"
#include "templates/linear_logp/op.hpp"

#include <array>
#include <cstddef>
#include <span>

namespace rlk {

using Int64 = std::int64_t;

constexpr Int64 ceil_div(Int64 a, Int64 b) { return (a + b - 1) / b; }
constexpr Int64 round_up(Int64 a, Int64 unit) { return ceil_div(a, unit) * unit; }

// A TypeCode of common/cuda/element.cuh.
constexpr int cuda_type(DType dtype) {
  switch (dtype) {
    case DType::f32:
      return 1;
    case DType::bf16:
      return 2;
    case DType::f16:
      return 3;
    case DType::f64:
      return 4;
    case DType::i8:
    case DType::i16:
    case DType::i32:
    case DType::i64:
      return 16 + static_cast<int>(size_bytes(dtype));
    default:
      return 32 + static_cast<int>(size_bytes(dtype));  // unsigned and bool
  }
}

// Deals out a workspace in order. With no memory behind it, only counts the bytes.
class Arena {
 public:
  explicit Arena(void* memory) : memory_(static_cast<std::byte*>(memory)) {}

  template <class T>
  T* take(Int64 count) {
    return static_cast<T*>(take_bytes(count * static_cast<Int64>(sizeof(T))));
  }
  void* take_bytes(Int64 bytes) {
    void* const at = memory_ == nullptr ? nullptr : memory_ + bytes_;
    bytes_ += static_cast<std::size_t>(round_up(bytes, 256));
    return at;
  }
  std::size_t bytes() const { return bytes_; }

 private:
  std::byte* memory_;
  std::size_t bytes_ = 0;
};

struct CudaPlan {
  LinearLogpCudaArgs args{};
  int element_bytes = 0;  // of hidden and weight

  // Copies of values a row come before the step rows, which reads them; operands' come after.
  std::span<const LinearLogpCudaCopy> row_copies() const { return {copies.data(), num_row_copies}; }
  std::span<const LinearLogpCudaCopy> operand_copies() const {
    return {copies.data() + num_row_copies, num_copies - num_row_copies};
  }

  // Forward by the loop of sm_90a: hidden as it lies and its active rows side by side.
  runtime::cuda::MatrixView hidden, gathered;

  // target, mask, temperature, three gradients; hidden, weight
  std::array<LinearLogpCudaCopy, 8> copies{};
  std::size_t num_row_copies = 0, num_copies = 0;
};

// The products of a call: rows of a tile of logits, and whether they are the forward's by the loop
// of sm_90a, which reads matrices by tensor maps and cannot gather.
struct CudaLoop {
  int rows = 0;
  bool is_sm90 = false, is_dynamic = false;
};

// Everything but error, op and what changes from launch to launch. `workspace_bytes` bounds the
// strip of a forward and the wave of a backward; the copies that strides ask for come on top.
CudaPlan plan_linear_logp_cuda(Arena& arena, const LinearLogpCall& call, const CudaLoop& loop,
                               Int64 workspace_bytes);

// Rows of tiles that a group has: what it reads of the hidden matrix stays in the L2 cache.
int linear_logp_group_tiles(int tile_rows, Int64 row_bytes);

}  // namespace rlk
