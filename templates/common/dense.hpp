// SPDX-License-Identifier: Apache-2.0
// Host tensors as dense arrays of one type: in place where they are so already, else copied.
#pragma once

#include "templates/common/expect.hpp"

#include <cstdint>
#include <vector>

namespace rlk::templates {

template <class T>
struct Dense {
  const T* data = nullptr;  // null: the tensor is absent
  std::vector<T> copy;
};

// Floating tensors as float32; float64 values are rounded.
Dense<float> dense_floats(const Tensor& tensor);

// The same as float64, without rounding.
Dense<double> dense_doubles(const Tensor& tensor);

// Integer tensors as int64.
Dense<long long> dense_integers(const Tensor& tensor);

// A mask of any type as bytes of 0 and 1. Throws InvalidArgument for another value.
Dense<unsigned char> dense_mask(const Given& given);

}  // namespace rlk::templates
