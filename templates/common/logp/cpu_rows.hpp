// SPDX-License-Identifier: Apache-2.0
// What the CPU kernels of every log-prob op take a row.
#pragma once

#include "templates/common/logp/active_rows.hpp"
#include "templates/common/logp/check.hpp"

#include <vector>

namespace rlk {

template <class T>
const T* data_or_null(const std::vector<T>& values) {
  return values.empty() ? nullptr : values.data();
}

inline float* floats(const Tensor& tensor) {
  return tensor.present() ? static_cast<float*>(tensor.data) : nullptr;
}

// Fills the fields that the arguments of all these kernels have by the same names. They point into
// `active`.
template <class Args>
void set_rows(Args& args, const LogpCallBase& call, const ActiveRows& active) {
  args.rows = data_or_null(active.rows);
  args.target = active.target.data();
  args.inverse_temperature = data_or_null(active.inverse_temperature);
  if (call.softcap) {
    args.softcap = static_cast<float>(*call.softcap);
    args.inverse_softcap = inverse_softcap(call, *call.softcap);
  }
  args.logit_scale = static_cast<float>(call.logit_scale);
  args.grad = data_or_null(active.grad);
  args.grad_entropy = data_or_null(active.grad_entropy);
  args.grad_lse = data_or_null(active.grad_lse);
  args.logp = floats(call.log_prob);
  args.row_max = floats(call.row_max);
  args.row_log_sum = floats(call.row_log_sum);
  args.entropy = floats(call.entropy);
  args.lse = floats(call.lse);
}

}  // namespace rlk
