// SPDX-License-Identifier: Apache-2.0
// Shapes, dtypes and devices of logp's arguments, and whether logits may be written over.
#include "runtime/error.hpp"
#include "templates/common/expect.hpp"
#include "templates/common/logp/leaves.h"
#include "templates/logp/op.hpp"

#include <algorithm>
#include <cstdlib>
#include <vector>

namespace rlk {
namespace {

// Whether no two elements share memory, as far as strides tell: each axis steps over all of those
// with smaller strides.
bool is_apart(const Tensor& tensor) {
  struct Axis {
    std::int64_t stride, size;
  };
  std::vector<Axis> axes;
  for (int i = 0; i < tensor.rank; ++i) {
    if (tensor.shape[i] == 0) return true;
    if (tensor.shape[i] > 1) axes.push_back({std::abs(tensor.strides[i]), tensor.shape[i]});
  }
  std::ranges::sort(axes, {}, &Axis::stride);
  std::int64_t covered = 1;
  for (const Axis& axis : axes) {
    if (axis.stride < covered) return false;
    covered += axis.stride * (axis.size - 1);
  }
  return true;
}

}  // namespace

void check_logits(const LogpCall& call) {
  const Given logits{call, call.logits, "logits"};
  expect_present(logits);
  expect_present({call, call.target, "target"});
  expect_storage(logits);
  if (call.logits.rank < 1 || call.vocab() < 1 || call.vocab() > kLogpMostColumns) {
    fail_shape(logits, "[..., V] with V from 1 to 2^31 - 1");
  }
  check_logp_rows(call, call.logits, "logits");
  check_logp_shard(call, call.vocab());
}

void check_logp(const jit::OpCall& base) {
  const auto& call = static_cast<const LogpCall&>(base);
  const Tensor& logits = call.logits;
  check_logits(call);
  if (call.in_place && !is_apart(logits)) {
    Given{call, logits, "inplace_backward"}.fail(
        "logits whose elements share no memory",
        fmt::format("strides {} of shape {}", text(logits.steps()), text(logits.dims())));
  }
  if (call.pass == jit::Pass::bwd) check_logp_gradients(call, logits, "logits");
}

}  // namespace rlk
