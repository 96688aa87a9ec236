// SPDX-License-Identifier: Apache-2.0
// Fills the arguments that a row's values come in.
#include "templates/common/logp/host.hpp"

namespace rlk {

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
