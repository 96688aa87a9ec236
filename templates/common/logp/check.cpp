// SPDX-License-Identifier: Apache-2.0
// What the checks and variants of all log-prob ops have in common. Values inside tensors are
// checked where they are read, in the launch.
#include "runtime/error.hpp"
#include "templates/common/expect.hpp"
#include "templates/common/logp/call.hpp"

#include <utility>

namespace rlk {

float inverse_of(const LogpCallBase& call, double number, const char* argument) {
  if (k_invertible.holds(number)) return 1.0f / static_cast<float>(number);
  throw InvalidArgument(Fault{std::string(call.op->name), argument,
                              std::string(k_invertible.expected), fmt::format("{}", number)});
}

void check_logp_rows(const LogpCallBase& call, const Tensor& matrix, const char* matrix_name) {
  const auto rows = matrix.dims().first(static_cast<std::size_t>(matrix.rank - 1));
  const auto expect_per_row = [&](const Given& given) {
    expect_device(given, matrix_name);
    expect_shape(given, rows);
  };
  const Given target{call, call.target, "target"}, mask{call, call.mask, "mask"};
  const Given temperature{call, call.temperature, "temperature"};
  expect_integers(target);
  expect_per_row(target);
  if (temperature.tensor.present()) {
    expect_floating(temperature, "a number or ");
    expect_per_row(temperature);
  }
  jit::check_numbers(call);
  if (mask.tensor.present()) {
    expect_mask(mask);
    expect_per_row(mask);
  }
  if (call.pass == jit::Pass::fwd) return;
  for (const auto& [grad, argument] :
       {std::pair{&call.grad_output, "grad_output"}, std::pair{&call.grad_entropy, "grad_entropy"},
        std::pair{&call.grad_lse, "grad_lse"}}) {
    const Given given{call, *grad, argument};
    if (!grad->present()) continue;
    expect_floating(given);
    expect_per_row(given);
  }
  if (!call.grad_entropy.present() && !call.grad_lse.present()) {
    expect_present({call, call.grad_output, "grad_output"});
  }
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
