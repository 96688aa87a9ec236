// SPDX-License-Identifier: Apache-2.0
// Describes copies to the step pack.
#include "templates/common/cuda_copies.hpp"

#include <cstdint>

namespace rlk {
namespace {

// Moves 16 bytes at a time where rows are made of such.
void widen(CudaCopy& copy) {
  const Int64 unit = 16 / copy.element_bytes;
  bool is_whole = copy.col_stride == 1 && copy.num_cols % unit == 0 && copy.pitch % unit == 0 &&
                  reinterpret_cast<std::uintptr_t>(copy.from) % 16 == 0;
  for (int axis = 0; axis < copy.num_axes; ++axis) is_whole &= copy.strides[axis] % unit == 0;
  if (!is_whole) return;
  for (int axis = 0; axis < copy.num_axes; ++axis) copy.strides[axis] /= unit;
  copy.num_cols /= unit;
  copy.pitch /= unit;
  copy.element_bytes = 16;
}

}  // namespace

void* CudaCopies::add(Arena& arena, const Tensor& tensor, int num_axes, Int64 cols,
                      Int64 col_stride, Int64 pitch, void* to) {
  CudaCopy& made = copies_.at(num_copies_++);
  made.from = tensor.data;
  made.num_rows = 1;
  made.num_cols = cols;
  made.pitch = pitch;
  made.col_stride = col_stride;
  made.num_axes = num_axes;
  for (int axis = 0; axis < num_axes; ++axis) {
    made.sizes[axis] = tensor.shape[axis];
    made.strides[axis] = tensor.strides[axis];
    made.num_rows *= tensor.shape[axis];
  }
  made.element_bytes = static_cast<int>(size_bytes(tensor.dtype));
  if (to == nullptr) to = arena.take_bytes(made.num_rows * pitch * made.element_bytes);
  made.to = to;
  widen(made);
  return to;
}

}  // namespace rlk
