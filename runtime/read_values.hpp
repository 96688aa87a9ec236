// SPDX-License-Identifier: Apache-2.0
// Values of small host tensors of any dtype and strides, as dense vectors in row-major order.
#pragma once

#include "runtime/tensor.hpp"

#include <cstdint>
#include <vector>

namespace rlk {

// Integer or bool tensors. uint64 values above the int64 range come out negative.
std::vector<std::int64_t> read_integers(const Tensor& tensor);

// Floating tensors; float64 values are rounded to float32.
std::vector<float> read_floats(const Tensor& tensor);

// Offsets of the elements themselves, in elements, in row-major order of the first `rank` axes.
std::vector<std::int64_t> read_offsets(const Tensor& tensor, int rank);

}  // namespace rlk
