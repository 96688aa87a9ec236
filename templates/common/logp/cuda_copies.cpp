// SPDX-License-Identifier: Apache-2.0
// Fills the arguments that a row's values come in.
#include "templates/common/logp/host.hpp"

#include <cstdint>

namespace rlk {
namespace {

// Moves 16 bytes at a time where rows are made of such.
void widen(LogpCudaCopy& copy) {
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

void* LogpCudaCopies::add(Arena& arena, const Tensor& tensor, int num_axes, Int64 cols,
                          Int64 col_stride, Int64 pitch) {
  LogpCudaCopy& made = copies_.at(num_copies_++);
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
  void* const to = made.to = arena.take_bytes(made.num_rows * pitch * made.element_bytes);
  widen(made);
  return to;
}

LogpCudaArray LogpCudaCopies::per_row(Arena& arena, const Tensor& tensor) {
  if (!tensor.present()) return {};
  const int type = type_code(tensor.dtype);
  if (const auto stride = flat_stride(tensor.dims(), tensor.steps())) {
    return {tensor.data, *stride, type};
  }
  return {add(arena, tensor, tensor.rank, 1, 0, 1), 1, type};
}

void LogpCudaCopies::set_rows(Arena& arena, const LogpCallBase& call, LogpCudaRows& rows) {
  rows.num_rows = call.target.num_elements();
  if (call.pass == jit::Pass::bwd) {
    rows.grad = per_row(arena, call.grad_output);
    rows.grad_entropy = per_row(arena, call.grad_entropy);
    rows.grad_lse = per_row(arena, call.grad_lse);
  }
  rows.target = per_row(arena, call.target);
  rows.mask = per_row(arena, call.mask);
  rows.temperature = per_row(arena, call.temperature);
  if (!call.temperature.present()) {
    rows.inverse_temperature = inverse_of(call, call.temperature.value, "temperature");
  }
  rows.has_ignore_index = call.ignore_index.has_value();
  rows.ignore_index = call.ignore_index.value_or(0);
  set_logit_options(rows, call);
}

}  // namespace rlk
