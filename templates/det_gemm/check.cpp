// SPDX-License-Identifier: Apache-2.0
// Stage 2 of det_gemm: shapes, dtypes and devices.
#include "runtime/error.hpp"
#include "templates/common/expect.hpp"
#include "templates/det_gemm/op.hpp"

#include <algorithm>
#include <array>
#include <limits>
#include <string>

namespace rlk {
namespace {

// Only a broadcast tensor can have larger sizes. Kernels count lanes and terms of a tile in 32
// bits.
constexpr std::int64_t k_largest_side = std::numeric_limits<std::int32_t>::max();
constexpr std::int64_t k_most_rows = std::int64_t{1} << 40;

void check_product(const DetGemmCall& call) {
  const Given a{call, call.a, "a"}, b{call, call.b, "b"};
  expect_present(a);
  expect_present(b);
  expect_storage(a);
  if (call.a.rank < 1) fail_shape(a, "[..., M, K]");
  expect_dtype(b, call.a.dtype, "a");
  expect_device(b, "a");
  const std::int64_t terms = call.a.shape[call.a.rank - 1];
  const bool fits =
      call.b.rank == 2 && call.b.shape[0] == terms && terms > 0 && call.b.shape[1] > 0;
  if (!fits)
    b.fail(fmt::format("shape [{}, N] with K and N at least 1", terms), text(call.b.dims()));
  if (terms > k_largest_side || call.b.shape[1] > k_largest_side) {
    b.fail("K and N below 2^31", text(call.b.dims()));
  }
  if (call.a.num_elements() / terms > k_most_rows) a.fail("at most 2^40 rows", text(call.a.dims()));
  if (!call.bias.present()) return;
  const Given bias{call, call.bias, "bias"};
  expect_dtype_or_float32(bias, call.a.dtype);
  expect_device(bias, "a");
  expect_shape(bias, call.b.dims().last(1));
}

void check_into(const DetGemmCall& call) {
  const Given into{call, call.out, "into"};
  expect_present(into);
  expect_device(into, "a");
  if (call.out.dtype != DType::f32) into.fail("float32", std::string(name(call.out.dtype)));
  const auto last = static_cast<std::size_t>(call.a.rank - 1);
  const std::array sizes{call.a.shape[last], call.b.shape[last]};
  expect_shape(into, sizes);
  const Tensor dense = dense_tensor(nullptr, DType::f32, {}, sizes);
  if (!std::ranges::equal(call.out.steps(), dense.steps()))
    into.fail("rows side by side", "strides");
}

// Operands that a forward was given, and its output's gradient as b.
void check_sum(const DetGemmCall& call) {
  const Given b{call, call.b, "grad_output"};
  expect_present(b);
  expect_storage(b);
  if (call.b.rank < 1) fail_shape(b, "[..., M, N]");
  const auto of_tokens = static_cast<std::size_t>(call.b.rank - 1);
  std::int64_t tokens = 1;
  for (const auto size : call.b.dims().first(of_tokens)) tokens *= size;
  if (tokens > k_largest_side) b.fail("fewer than 2^31 rows", text(call.b.dims()));
  if (!call.a.present()) return;
  expect_dtype(b, call.a.dtype, "a");
  expect_device(b, "a");
  if (call.a.rank != call.b.rank) fail_shape(b, "[..., M, N]");
  if (!std::ranges::equal(call.a.dims().first(of_tokens), call.b.dims().first(of_tokens))) {
    b.fail("rows as {a} has, " + text(call.a.dims().first(of_tokens)), text(call.b.dims()));
  }
  if (call.accumulates) check_into(call);
}

}  // namespace

void check_det_gemm(const jit::OpCall& base) {
  const auto& call = static_cast<const DetGemmCall&>(base);
  call.sums_tokens ? check_sum(call) : check_product(call);
}

}  // namespace rlk
