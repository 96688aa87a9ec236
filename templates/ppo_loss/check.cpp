// SPDX-License-Identifier: Apache-2.0
// Stage 2 of ppo_loss: shapes, dtypes and devices. Names, numbers and contradictions among options
// are the caller's to check, values inside tensors the launch's.
#include "templates/ppo_loss/op.hpp"

#include <algorithm>

namespace rlk {
namespace {

// A thread's exact sums have room for so many; far more than any memory holds.
constexpr std::int64_t k_most_tokens = std::int64_t{1} << 36;

void expect_floats(const Given& given) {
  expect_device(given, "log_probs");
  expect_floating(given);
}

void expect_token_floats(const PpoLossCall& call, const Tensor& tensor, const char* argument) {
  const Given given{call, tensor, argument};
  expect_present(given);
  expect_floats(given);
  expect_shape(given, call.log_probs.dims(), "log_probs");
}

void expect_token_or_sequence_floats(const PpoLossCall& call, const Tensor& tensor,
                                     const char* argument) {
  const Given given{call, tensor, argument};
  expect_present(given);
  expect_floats(given);
  if (std::ranges::equal(tensor.dims(), call.log_probs.dims())) return;
  const std::int64_t sequences = call.num_sequences();
  const bool is_column = tensor.rank == 2 && tensor.shape[1] == 1 && tensor.shape[0] == sequences;
  if (is_column || (tensor.rank == 1 && tensor.shape[0] == sequences)) return;
  fail_shape(given,
             fmt::format("{} or [{}] (one a sequence)", text(call.log_probs.dims()), sequences));
}

void expect_boundary_integers(const Given& given, const char* shape) {
  expect_device(given, "log_probs");
  expect_integers(given);
  if (given.tensor.rank != 1 || given.tensor.shape[0] < 1) fail_shape(given, shape);
}

void check_layout(const PpoLossCall& call) {
  const Tensor& tokens = call.log_probs;
  const Given given{call, tokens, "log_probs"};
  expect_present(given);
  expect_floats(given);
  if (call.cu_seqlens.present()) {
    if (tokens.rank != 1) fail_shape(given, "[N] with {cu_seqlens}");
    expect_boundary_integers({call, call.cu_seqlens, "cu_seqlens"}, "[B + 1]");
  } else if (tokens.rank != 1 && tokens.rank != 2) {
    fail_shape(given, "[B, T], or [N] with {cu_seqlens}");
  }
  if (tokens.num_elements() > k_most_tokens) {
    given.fail("at most 2^36 tokens", std::to_string(tokens.num_elements()));
  }
}

void check_groups(const PpoLossCall& call) {
  const std::int64_t sequences = call.num_sequences();
  if (call.group_starts.present()) {
    expect_boundary_integers({call, call.group_starts, "group_boundaries"}, "[P + 1]");
  } else if (call.group_size > 0 && sequences % call.group_size != 0) {
    const Given given{call, call.group_starts, "samples_per_prompt"};
    given.fail(fmt::format("a divisor of the {} sequences", sequences),
               std::to_string(call.group_size));
  }
}

void expect_one(const Given& given, DType dtype, const char* expected) {
  expect_device(given, "log_probs");
  if (given.tensor.dtype == dtype && given.tensor.num_elements() == 1) return;
  given.fail(expected,
             fmt::format("{} of shape {}", name(given.tensor.dtype), text(given.tensor.dims())));
}

void check_forward(const PpoLossCall& call) {
  check_layout(call);
  expect_token_floats(call, call.old_log_probs, "old_log_probs");
  expect_token_or_sequence_floats(call, call.advantages, "advantages");
  if (call.mask.present()) {
    const Given given = ppo_loss_mask(call);
    expect_device(given, "log_probs");
    expect_mask(given);
    expect_shape(given, call.log_probs.dims(), "log_probs");
  }
  if (reads_rollout(call.choices)) {
    expect_token_floats(call, call.rollout_log_probs, "rollout_logprobs");
  }
  if (call.choices.correction == kGiven) {
    expect_token_or_sequence_floats(call, call.importance_weights, "importance_weights");
  }
  if (call.choices.kl != kNoKl) expect_token_floats(call, call.ref_log_probs, "ref_log_probs");
  if (call.choices.entropy != 0) expect_token_floats(call, call.entropy, "entropy");
  if (call.weights.present()) expect_token_or_sequence_floats(call, call.weights, "loss_weights");
  check_groups(call);
  for (const auto& [count, argument] : ppo_loss_counts(call)) {
    if (count->present()) expect_one({call, *count, argument}, DType::i64, "one int64");
  }
}

void check_backward(const PpoLossCall& call) {
  const Given upstream{call, call.upstream, "grad_output"};
  expect_present(upstream);
  expect_one(upstream, DType::f32, "one float32");
}

}  // namespace

void check_ppo_loss(const jit::OpCall& base) {
  const auto& call = static_cast<const PpoLossCall&>(base);
  call.pass == jit::Pass::fwd ? check_forward(call) : check_backward(call);
}

}  // namespace rlk
