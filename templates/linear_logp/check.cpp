// SPDX-License-Identifier: Apache-2.0
// Stage 2 of linear_logp: shapes, dtypes, devices and plain values. Values inside tensors are
// checked where they are read, in the launch.
#include "templates/linear_logp/check.hpp"

#include "runtime/error.hpp"
#include "templates/linear_logp/op.hpp"

#include <algorithm>
#include <cmath>

namespace rlk {
namespace {

// Only a broadcast tensor can be larger. Sizes of workspace stay far below 2^63 bytes with it.
constexpr std::int64_t k_largest_size = std::int64_t{1} << 40;

constexpr const char* k_storage_types = "float32, bfloat16 or float16";

void expect_device(const Tensor& tensor, const char* argument, Device device) {
  if (tensor.device == device) return;
  throw InvalidArgument("linear_logp: {}: expected device {} (that of hidden), got {}", argument,
                        text(device), text(tensor.device));
}

bool same_shape(const Tensor& tensor, std::span<const std::int64_t> shape) {
  return std::ranges::equal(tensor.dims(), shape);
}

void expect_shape(const Tensor& tensor, const char* argument, std::span<const std::int64_t> shape) {
  if (same_shape(tensor, shape)) return;
  throw InvalidArgument("linear_logp: {}: expected shape {}, got {}", argument, text(shape),
                        text(tensor.dims()));
}

void expect_per_row(const Tensor& tensor, const char* argument, const LinearLogpCall& call) {
  expect_device(tensor, argument, call.device);
  expect_shape(tensor, argument, call.hidden.dims().first(call.hidden.rank - 1));
}

void check_operands(const LinearLogpCall& call) {
  const Tensor &hidden = call.hidden, &weight = call.weight;
  if (!is_storage(hidden.dtype)) {
    throw InvalidArgument("linear_logp: hidden: expected dtype {}, got {}", k_storage_types,
                          name(hidden.dtype));
  }
  if (hidden.rank < 1) {
    throw InvalidArgument("linear_logp: hidden: expected shape [..., D], got []");
  }
  if (weight.dtype != hidden.dtype) {
    throw InvalidArgument("linear_logp: weight: expected dtype {} (that of hidden), got {}",
                          name(hidden.dtype), name(weight.dtype));
  }
  expect_device(weight, "weight", call.device);
  const std::int64_t dim = hidden.shape[hidden.rank - 1];
  if (weight.rank == 2 && std::max(weight.shape[0], dim) > k_largest_size) {
    throw InvalidArgument("linear_logp: weight: expected V and D of at most 2^40, got {}",
                          text(weight.dims()));
  }
  if (weight.rank == 2 && weight.shape[1] == dim && weight.shape[0] > 0 && dim > 0) return;
  const char* hint = "";
  if (weight.num_elements() == 0) hint = "; a sharded weight must be gathered before the call";
  throw InvalidArgument(
      "linear_logp: weight: expected shape [V, {}] with V and D at least 1, got {}{}", dim,
      text(weight.dims()), hint);
}

void check_options(const LinearLogpCall& call) {
  if (!is_integer(call.target.dtype)) {
    throw InvalidArgument("linear_logp: target: expected an integer dtype, got {}",
                          name(call.target.dtype));
  }
  expect_per_row(call.target, "target", call);
  if (call.bias.present()) {
    if (call.bias.dtype != call.hidden.dtype && call.bias.dtype != DType::f32) {
      throw InvalidArgument("linear_logp: bias: expected dtype {} or float32, got {}",
                            name(call.hidden.dtype), name(call.bias.dtype));
    }
    expect_device(call.bias, "bias", call.device);
    expect_shape(call.bias, "bias", call.weight.dims().first(1));
  }
  if (call.temperature.present()) {
    if (!is_floating(call.temperature.dtype)) {
      throw InvalidArgument(
          "linear_logp: temperature: expected a number or a floating dtype, got {}",
          name(call.temperature.dtype));
    }
    expect_per_row(call.temperature, "temperature", call);
  } else {
    inverse_temperature(call.temperature_value);
  }
  if (call.softcap) inverse_softcap(*call.softcap);
  if (!std::isfinite(static_cast<float>(call.logit_scale))) {
    throw InvalidArgument("linear_logp: logit_scale: expected a finite number of float32, got {}",
                          call.logit_scale);
  }
  if (call.mask.present()) {
    const DType dtype = call.mask.dtype;
    if (dtype != DType::boolean && !is_integer(dtype) && !is_floating(dtype)) {
      throw InvalidArgument("linear_logp: mask: expected a bool, integer or floating dtype, got {}",
                            name(dtype));
    }
    expect_per_row(call.mask, "mask", call);
  }
}

void check_gradients(const LinearLogpCall& call) {
  bool any = false;
  for (const auto& [grad, argument] :
       {std::pair{&call.grad_output, "grad_output"}, std::pair{&call.grad_entropy, "grad_entropy"},
        std::pair{&call.grad_lse, "grad_lse"}}) {
    if (!grad->present()) continue;
    any = true;
    if (!is_floating(grad->dtype)) {
      throw InvalidArgument("linear_logp: {}: expected a floating dtype, got {}", argument,
                            name(grad->dtype));
    }
    expect_per_row(*grad, argument, call);
  }
  if (!any) throw InvalidArgument("linear_logp: grad_output: expected a tensor, got None");
  if (call.grad_entropy.present() && !call.entropy.present()) {
    throw InvalidArgument("linear_logp: entropy: expected that of the forward for grad_entropy");
  }
  if (call.grad_bias.present() && !call.bias.present()) {
    throw InvalidArgument("linear_logp: needs: expected no \"bias\" where bias is None");
  }
}

// The sum of both checks: positive, and neither the number nor its inverse leaves fp32's normal
// range.
float inverse_of(double number, const char* argument) {
  const float rounded = static_cast<float>(number);
  const float inverse = 1.0f / rounded;
  if (rounded > 0.0f && std::isfinite(rounded) && std::isnormal(inverse)) return inverse;
  throw InvalidArgument("linear_logp: {}: expected a finite number above 0 (3e-39 to 8e37), got {}",
                        argument, number);
}

}  // namespace

float inverse_temperature(double temperature) { return inverse_of(temperature, "temperature"); }

float inverse_softcap(double softcap) { return inverse_of(softcap, "softcap"); }

void check_linear_logp(const jit::OpCall& base) {
  const auto& call = static_cast<const LinearLogpCall&>(base);
  check_operands(call);
  check_options(call);
  if (call.pass == jit::Pass::bwd) check_gradients(call);
}

}  // namespace rlk
