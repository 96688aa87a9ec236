// SPDX-License-Identifier: Apache-2.0
// What the checks and variants of all log-prob ops have in common. Values inside tensors are
// checked where they are read, in the launch.
#include "runtime/error.hpp"
#include "templates/common/expect.hpp"
#include "templates/common/logp/call.hpp"

#include <algorithm>
#include <string>
#include <utility>

namespace rlk {
namespace {

void expect_per_row(const Given& given, const Tensor& matrix, const char* matrix_name) {
  expect_device(given, matrix_name);
  expect_shape(given, matrix.dims().first(static_cast<std::size_t>(matrix.rank - 1)));
}

}  // namespace

float inverse_of(const LogpCallBase& call, double number, const char* argument) {
  if (k_invertible.holds(number)) return 1.0f / static_cast<float>(number);
  throw InvalidArgument(Fault{std::string(call.op->name), argument,
                              std::string(k_invertible.expected), fmt::format("{}", number)});
}

void check_logp_rows(const LogpCallBase& call, const Tensor& matrix, const char* matrix_name) {
  const Given target{call, call.target, "target"}, mask{call, call.mask, "mask"};
  const Given temperature{call, call.temperature, "temperature"};
  expect_integers(target);
  expect_per_row(target, matrix, matrix_name);
  if (temperature.tensor.present()) {
    expect_floating(temperature, "a number or ");
    expect_per_row(temperature, matrix, matrix_name);
  }
  jit::check_numbers(call);
  if (mask.tensor.present()) {
    expect_mask(mask);
    expect_per_row(mask, matrix, matrix_name);
  }
}

void check_logp_shard(const LogpCallBase& call, std::int64_t columns) {
  const auto fail = [&](std::string expected, std::string got) {
    throw InvalidArgument(
        Fault{std::string(call.op->name), "shard", std::move(expected), std::move(got)});
  };
  if (call.num_ids != 0 && (call.num_ids > kLogpMostColumns || call.first_id < 0 ||
                            columns > call.num_ids - call.first_id)) {
    fail(fmt::format("{} columns within [0, V)", columns),
         fmt::format("from {} on, V {}", call.first_id, call.num_ids));
  }
  if (call.segment < 0 || call.segment > std::max(call.num_ids, columns)) {
    fail("a segment of 0 to V columns", std::to_string(call.segment));
  }
  // A segment that is too short would cut the columns into more than eight.
  if (call.segment > 0 && columns > call.segment * kLogpSegments) {
    fail("at most 8 segments", fmt::format("{} columns in segments of {}", columns, call.segment));
  }
  if (!call.parts.present()) return;
  const Tensor& parts = call.parts;
  const auto values = logp_part_values(call.return_entropy, call.return_stats);
  const Given given{call, parts, "parts"};
  expect_device(given, "target");
  const bool fits = parts.dtype == DType::f32 && parts.rank == 3 && parts.shape[1] == values &&
                    parts.shape[2] == call.target.num_elements() && is_dense(parts);
  if (!fits) {
    given.fail(
        fmt::format("contiguous float32 [ranks, {}, {}]", values, call.target.num_elements()),
        text(parts.dims()));
  }
}

void check_logp_gradients(const LogpCallBase& call, const Tensor& matrix, const char* matrix_name) {
  bool any = false;
  for (const auto& [grad, argument] :
       {std::pair{&call.grad_output, "grad_output"}, std::pair{&call.grad_entropy, "grad_entropy"},
        std::pair{&call.grad_lse, "grad_lse"}}) {
    if (!grad->present()) continue;
    any = true;
    expect_floating({call, *grad, argument});
    expect_per_row({call, *grad, argument}, matrix, matrix_name);
  }
  if (!any) expect_present({call, call.grad_output, "grad_output"});
  if (call.grad_entropy.present() && !call.entropy.present()) {
    Given{call, call.entropy, "entropy"}.fail("that of the forward for {grad_entropy}", "");
  }
}

std::vector<jit::Specialization> generic_logits_variants(const jit::Op& op, Target target) {
  std::vector<jit::Specialization> variants;
  for (const auto pass : {jit::Pass::fwd, jit::Pass::bwd}) {
    if (op.entries(pass, backend(target)).empty()) continue;
    for (const int type : k_storage_codes) {
      variants.push_back(jit::Specialization{&op, pass, target, {type}}.generic());
    }
  }
  return variants;
}

}  // namespace rlk
