// SPDX-License-Identifier: Apache-2.0
// The rows of a call on the CPU: which are active, where they lie, and their value each.
#pragma once

#include "templates/common/logp/call.hpp"

#include <cstdint>
#include <vector>

namespace rlk {

// All vectors are over the active rows in ascending order.
struct ActiveRows {
  std::int64_t num_rows = 0;  // of the call, inactive ones included
  std::int64_t num_active = 0;
  std::vector<std::int64_t> rows;     // empty: all are active
  std::vector<std::int64_t> offsets;  // in the matrix; empty: row * row_stride
  std::int64_t row_stride = 0;
  std::vector<std::int64_t> target;
  std::vector<float> inverse_temperature;           // empty: 1
  std::vector<float> grad, grad_entropy, grad_lse;  // backward; empty: 0
};

// `matrix` is [..., columns], read a row at a time; only its shape and strides are looked at.
// Throws InvalidArgument, naming the row, on a target outside [0, V), a temperature that is not
// above 0 or a mask that is neither 0 nor 1; the first two in active rows only.
ActiveRows active_rows(const LogpCallBase& call, const Tensor& matrix, std::int64_t vocab);

}  // namespace rlk
