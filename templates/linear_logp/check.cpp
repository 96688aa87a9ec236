// SPDX-License-Identifier: Apache-2.0
// Stage 2 of linear_logp: shapes, dtypes, devices and plain values.
#include "runtime/error.hpp"
#include "templates/common/expect.hpp"
#include "templates/common/logp/leaves.h"
#include "templates/linear_logp/op.hpp"

#include <algorithm>

namespace rlk {
namespace {

// Only a broadcast tensor can be larger. Sizes of workspace stay far below 2^63 bytes with it.
constexpr std::int64_t k_largest_size = std::int64_t{1} << 40;

void check_operands(const LinearLogpCall& call) {
  const Given hidden{call, call.hidden, "hidden"}, weight{call, call.weight, "weight"};
  const Tensor &h = call.hidden, &w = call.weight;
  for (const Given& given : {hidden, weight, Given{call, call.target, "target"}}) {
    expect_present(given);
  }
  expect_storage(hidden);
  if (h.rank < 1) fail_shape(hidden, "[..., D]");
  if (w.dtype != h.dtype) {
    weight.fail(fmt::format("dtype {} (that of {{hidden}})", name(h.dtype)),
                std::string(name(w.dtype)));
  }
  expect_device(weight, "hidden");
  const std::int64_t dim = h.shape[h.rank - 1];
  if (w.rank == 2 && (w.shape[0] > kLogpMostColumns || dim > k_largest_size)) {
    weight.fail("V below 2^31 and D of at most 2^40", text(w.dims()));
  }
  if (w.rank == 2 && w.shape[1] == dim && w.shape[0] > 0 && dim > 0) return;
  const char* hint = "";
  if (w.num_elements() == 0) hint = "; a sharded weight must be gathered before the call";
  weight.fail(fmt::format("shape [V, {}] with V and D at least 1", dim), text(w.dims()) + hint);
}

void check_bias(const LinearLogpCall& call) {
  if (!call.bias.present()) return;
  const Given bias{call, call.bias, "bias"};
  if (call.bias.dtype != call.hidden.dtype && call.bias.dtype != DType::f32) {
    bias.fail(fmt::format("dtype {} or float32", name(call.hidden.dtype)),
              std::string(name(call.bias.dtype)));
  }
  expect_device(bias, "hidden");
  expect_shape(bias, call.weight.dims().first(1));
}

}  // namespace

void check_linear_logp(const jit::OpCall& base) {
  const auto& call = static_cast<const LinearLogpCall&>(base);
  check_operands(call);
  check_bias(call);
  check_logp_rows(call, call.hidden, "hidden");
  if (call.pass == jit::Pass::fwd) return;
  check_logp_gradients(call, call.hidden, "hidden");
  if (call.grad_bias.present() && !call.bias.present()) {
    Given{call, call.bias, "needs"}.fail("no \"bias\" where bias is None", "");
  }
}

}  // namespace rlk
