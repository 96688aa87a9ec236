// SPDX-License-Identifier: Apache-2.0
// Stage 2 of linear_logp: shapes, dtypes, devices and plain values.
#include "runtime/error.hpp"
#include "templates/common/expect.hpp"
#include "templates/common/logp/leaves.h"
#include "templates/linear_logp/op.hpp"

#include <algorithm>
#include <cstddef>
#include <string>
#include <utility>

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
    weight.fail(fmt::format("dtype {} (that of {{hidden}}; of torch tensors compute_dtype or "
                            "autocast casts both)",
                            name(h.dtype)),
                std::string(name(w.dtype)));
  }
  expect_device(weight, "hidden");
  const std::int64_t dim = h.shape[h.rank - 1];
  if (w.rank == 2 && (w.shape[0] > kLogpMostColumns || dim > k_largest_size)) {
    weight.fail("V below 2^31 and D of at most 2^40", text(w.dims()));
  }
  if (w.rank == 2 && w.shape[1] == dim && w.shape[0] > 0 && dim > 0) return;
  const char* hint = "";
  if (w.rank == 1 || w.num_elements() == 0) {
    hint =
        "; a weight that is sharded must be gathered: with FSDP call inside of the forward of the "
        "module that holds it, with ZeRO-3 inside of deepspeed.zero.GatheredParameters, the "
        "backward included";
  }
  weight.fail(fmt::format("shape [V, {}] with V and D at least 1", dim), text(w.dims()) + hint);
}

void check_bias(const LinearLogpCall& call) {
  if (!call.bias.present()) return;
  const Given bias{call, call.bias, "bias"};
  expect_dtype_or_float32(bias, call.hidden.dtype);
  expect_device(bias, "hidden");
  expect_shape(bias, call.weight.dims().first(1));
}

// Addresses of a tensor's elements: from the first byte to the one after the last.
std::pair<const std::byte*, const std::byte*> span_of(const Tensor& tensor) {
  std::int64_t first = 0, last = 0;
  for (int axis = 0; axis < tensor.rank; ++axis) {
    const std::int64_t step = (tensor.shape[axis] - 1) * tensor.strides[axis];
    (step < 0 ? first : last) += step;
  }
  const auto size = static_cast<std::int64_t>(size_bytes(tensor.dtype));
  const auto* data = static_cast<const std::byte*>(tensor.data);
  return {data + first * size, data + (last + 1) * size};
}

void check_accumulate_into(const LinearLogpCall& call) {
  if (!call.accumulate_into.present()) return;
  const Tensor& into = call.accumulate_into;
  const Given given{call, into, "accumulate_into"};
  if (into.dtype != DType::f32) given.fail("dtype float32", std::string(name(into.dtype)));
  expect_device(given, "hidden");
  expect_shape(given, call.weight.dims(), "weight");
  if (!is_dense(into)) {
    given.fail("a contiguous tensor", "strides " + text(into.steps()));
  }
  const auto [first, last] = span_of(into);
  for (const auto& [other, argument] :
       {std::pair{&call.weight, "weight"}, std::pair{&call.hidden, "hidden"},
        std::pair{&call.bias, "bias"}}) {
    if (!other->present() || other->num_elements() == 0) continue;
    const auto [begin, end] = span_of(*other);
    if (begin < last && first < end) {
      given.fail(fmt::format("memory that {{{}}} does not share", argument), "some of it");
    }
  }
}

void check_saved(const LinearLogpCall& call) {
  constexpr std::int64_t k_most_mib = 1 << 20;
  if (call.saved_mib && (*call.saved_mib < 0 || *call.saved_mib > k_most_mib)) {
    Given{call, call.kept, "saved_mib"}.fail(
        fmt::format("a whole number from 0 to {}, or None", k_most_mib),
        std::to_string(*call.saved_mib));
  }
  if (call.entropy_grad && !call.return_entropy) {
    Given{call, call.entropy, "entropy_grad"}.fail("False without {return_entropy}", "True");
  }
}

// Made by the bindings, and given back by hooks of autograd.
void check_kept(const LinearLogpCall& call) {
  if (!call.kept.present()) return;
  const Given kept{call, call.kept, "kept"};
  expect_device(kept, "hidden");
  LinearLogpCall same = call;
  same.saved_mib.reset();
  const Tensor most = linear_logp_kept_tensor(same, std::int64_t{1} << 40);
  const Tensor& given = call.kept;
  const std::int64_t step = linear_logp_kept_step(call);
  const bool fits = given.rank == 2 && given.dtype == most.dtype &&
                    given.shape[0] == most.shape[0] && given.shape[1] > 0 &&
                    given.shape[1] % step == 0 && given.shape[1] <= most.shape[1] &&
                    is_dense(given);
  if (!fits) kept.fail("what the forward has kept", text(given.dims()));
  if (call.grad_entropy.present()) kept.fail("None with {grad_entropy}", "a tensor");
}

}  // namespace

void check_linear_logp(const jit::OpCall& base) {
  const auto& call = static_cast<const LinearLogpCall&>(base);
  check_operands(call);
  check_bias(call);
  check_logp_rows(call, call.hidden, "hidden");
  check_logp_shard(call, call.weight.shape[0]);
  check_saved(call);
  check_accumulate_into(call);
  check_kept(call);
  if (call.pass == jit::Pass::fwd) return;
  check_logp_gradients(call, call.hidden, "hidden");
  if (call.grad_bias.present() && !call.bias.present()) {
    Given{call, call.bias, "needs"}.fail("no \"bias\" where bias is None", "");
  }
}

}  // namespace rlk
