// SPDX-License-Identifier: Apache-2.0
// Shapes, dtypes, devices and plain values. Values inside tensors are checked where they are read,
// in the launch.
#include "templates/common/logp/check.hpp"

#include "runtime/error.hpp"

#include <algorithm>
#include <cmath>

namespace rlk {
namespace {

void expect_per_row(const Tensor& tensor, const char* argument, const LogpCallBase& call,
                    const Tensor& matrix, const char* matrix_name) {
  if (tensor.device != call.device) {
    throw InvalidArgument("{}: {}: expected device {} (that of {}), got {}", call.op->name,
                          argument, text(call.device), matrix_name, text(tensor.device));
  }
  const auto shape = matrix.dims().first(static_cast<std::size_t>(matrix.rank - 1));
  if (std::ranges::equal(tensor.dims(), shape)) return;
  throw InvalidArgument("{}: {}: expected shape {}, got {}", call.op->name, argument, text(shape),
                        text(tensor.dims()));
}

// The sum of both checks: positive, and neither the number nor its inverse leaves fp32's normal
// range.
float inverse_of(const jit::Op& op, double number, const char* argument) {
  const float rounded = static_cast<float>(number);
  const float inverse = 1.0f / rounded;
  if (rounded > 0.0f && std::isfinite(rounded) && std::isnormal(inverse)) return inverse;
  throw InvalidArgument("{}: {}: expected a finite number above 0 (3e-39 to 8e37), got {}", op.name,
                        argument, number);
}

void check_logit_scale(const jit::Op& op, double scale) {
  if (std::isfinite(static_cast<float>(scale))) return;
  throw InvalidArgument("{}: logit_scale: expected a finite number of float32, got {}", op.name,
                        scale);
}

}  // namespace

float inverse_temperature(const LogpCallBase& call, double temperature) {
  return inverse_of(*call.op, temperature, "temperature");
}

float inverse_softcap(const LogpCallBase& call, double softcap) {
  return inverse_of(*call.op, softcap, "softcap");
}

void check_logp_model(const jit::Op& op, const jit::ModelShape& shape) {
  if (shape.softcap) inverse_of(op, *shape.softcap, "softcap");
  check_logit_scale(op, shape.logit_scale);
}

void check_logp_options(const LogpCallBase& call, const Tensor& matrix, const char* matrix_name) {
  if (!is_integer(call.target.dtype)) {
    throw InvalidArgument("{}: target: expected an integer dtype, got {}", call.op->name,
                          name(call.target.dtype));
  }
  expect_per_row(call.target, "target", call, matrix, matrix_name);
  if (call.temperature.present()) {
    if (!is_floating(call.temperature.dtype)) {
      throw InvalidArgument("{}: temperature: expected a number or a floating dtype, got {}",
                            call.op->name, name(call.temperature.dtype));
    }
    expect_per_row(call.temperature, "temperature", call, matrix, matrix_name);
  } else {
    inverse_temperature(call, call.temperature_value);
  }
  if (call.softcap) inverse_softcap(call, *call.softcap);
  check_logit_scale(*call.op, call.logit_scale);
  if (call.mask.present()) {
    const DType dtype = call.mask.dtype;
    if (dtype != DType::boolean && !is_integer(dtype) && !is_floating(dtype)) {
      throw InvalidArgument("{}: mask: expected a bool, integer or floating dtype, got {}",
                            call.op->name, name(dtype));
    }
    expect_per_row(call.mask, "mask", call, matrix, matrix_name);
  }
}

void check_logp_gradients(const LogpCallBase& call, const Tensor& matrix, const char* matrix_name) {
  bool any = false;
  for (const auto& [grad, argument] :
       {std::pair{&call.grad_output, "grad_output"}, std::pair{&call.grad_entropy, "grad_entropy"},
        std::pair{&call.grad_lse, "grad_lse"}}) {
    if (!grad->present()) continue;
    any = true;
    if (!is_floating(grad->dtype)) {
      throw InvalidArgument("{}: {}: expected a floating dtype, got {}", call.op->name, argument,
                            name(grad->dtype));
    }
    expect_per_row(*grad, argument, call, matrix, matrix_name);
  }
  if (!any) throw InvalidArgument("{}: grad_output: expected a tensor, got None", call.op->name);
  if (call.grad_entropy.present() && !call.entropy.present()) {
    throw InvalidArgument("{}: entropy: expected that of the forward for grad_entropy",
                          call.op->name);
  }
}

}  // namespace rlk
