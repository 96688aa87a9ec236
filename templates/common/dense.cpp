// SPDX-License-Identifier: Apache-2.0
// Masks are read on every call, so those that lie dense are read in one plain loop a type.
#include "templates/common/dense.hpp"

#include "runtime/error.hpp"
#include "runtime/read_values.hpp"

#include <algorithm>

namespace rlk::templates {
namespace {

// Whether all values were 0 or 1.
template <class T>
bool narrow(const T* from, std::vector<unsigned char>& to) {
  bool good = true;
  for (std::size_t i = 0; i < to.size(); ++i) {
    const T value = from[i];
    good &= (value == T{0}) | (value == T{1});
    to[i] = value != T{0};
  }
  return good;
}

bool narrow_dense(const Tensor& mask, std::vector<unsigned char>& to) {
  switch (mask.dtype) {
    case DType::f32:
      return narrow(static_cast<const float*>(mask.data), to);
    case DType::f64:
      return narrow(static_cast<const double*>(mask.data), to);
    case DType::i32:
      return narrow(static_cast<const std::int32_t*>(mask.data), to);
    case DType::i64:
      return narrow(static_cast<const std::int64_t*>(mask.data), to);
    default:
      return false;
  }
}

template <class T>
void expect_switches(const Given& given, const std::vector<T>& values,
                     std::vector<unsigned char>& to) {
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (values[i] != 0 && values[i] != 1) {
      given.fail("0 or 1", fmt::format("{} at token {}", values[i], i));
    }
    to[i] = values[i] != 0;
  }
}

}  // namespace

Dense<float> dense_floats(const Tensor& tensor) {
  if (!tensor.present()) return {};
  if (tensor.dtype == DType::f32 && is_dense(tensor)) {
    return {static_cast<const float*>(tensor.data), {}};
  }
  Dense<float> dense{nullptr, read_floats(tensor)};
  dense.data = dense.copy.data();
  return dense;
}

Dense<double> dense_doubles(const Tensor& tensor) {
  Dense<double> dense;
  if (tensor.dtype == DType::f64) {
    const auto* const from = static_cast<const double*>(tensor.data);
    for_each_offset(tensor.dims(), tensor.steps(),
                    [&](std::int64_t offset) { dense.copy.push_back(from[offset]); });
  } else {
    const auto values = read_floats(tensor);
    dense.copy.assign(values.begin(), values.end());
  }
  dense.data = dense.copy.data();
  return dense;
}

Dense<long long> dense_integers(const Tensor& tensor) {
  if (!tensor.present()) return {};
  const auto values = read_integers(tensor);
  Dense<long long> dense{nullptr, {values.begin(), values.end()}};
  dense.data = dense.copy.data();
  return dense;
}

Dense<unsigned char> dense_mask(const Given& given) {
  const Tensor& tensor = given.tensor;
  if (!tensor.present()) return {};
  const bool dense_already = is_dense(tensor);
  if (tensor.dtype == DType::boolean && dense_already) {
    return {static_cast<const unsigned char*>(tensor.data), {}};
  }
  Dense<unsigned char> dense;
  dense.copy.resize(static_cast<std::size_t>(tensor.num_elements()));
  if (!dense_already || !narrow_dense(tensor, dense.copy)) {
    if (is_floating(tensor.dtype)) {
      expect_switches(given, read_floats(tensor), dense.copy);
    } else {
      expect_switches(given, read_integers(tensor), dense.copy);
    }
  }
  dense.data = dense.copy.data();
  return dense;
}

}  // namespace rlk::templates
