// SPDX-License-Identifier: Apache-2.0
// Stage 2 of linear_logp: shapes, dtypes, devices and plain values. Values inside tensors are
// checked where they are read, in the launch.
#include "templates/linear_logp/check.hpp"

#include "runtime/error.hpp"
#include "templates/common/logp/check.hpp"
#include "templates/linear_logp/op.hpp"

#include <algorithm>

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

void check_bias(const LinearLogpCall& call) {
  if (!call.bias.present()) return;
  if (call.bias.dtype != call.hidden.dtype && call.bias.dtype != DType::f32) {
    throw InvalidArgument("linear_logp: bias: expected dtype {} or float32, got {}",
                          name(call.hidden.dtype), name(call.bias.dtype));
  }
  expect_device(call.bias, "bias", call.device);
  expect_shape(call.bias, "bias", call.weight.dims().first(1));
}

}  // namespace

void check_linear_logp(const jit::OpCall& base) {
  const auto& call = static_cast<const LinearLogpCall&>(base);
  check_operands(call);
  check_bias(call);
  check_logp_options(call, call.hidden, "hidden");
  if (call.pass != jit::Pass::bwd) return;
  check_logp_gradients(call, call.hidden, "hidden");
  if (call.grad_bias.present() && !call.bias.present()) {
    throw InvalidArgument("linear_logp: needs: expected no \"bias\" where bias is None");
  }
}

}  // namespace rlk
