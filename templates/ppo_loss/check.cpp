// SPDX-License-Identifier: Apache-2.0
// Stage 2 of ppo_loss: shapes, dtypes and devices. Names, numbers and contradictions among options
// are the caller's to check, values inside tensors the launch's.
#include "templates/ppo_loss/check.hpp"

#include "runtime/error.hpp"
#include "templates/ppo_loss/op.hpp"

#include <algorithm>

namespace rlk {
namespace {

// A thread's exact sums have room for so many; far more than any memory holds.
constexpr std::int64_t k_most_tokens = std::int64_t{1} << 36;

[[noreturn]] void fail_shape(const char* argument, const std::string& expected,
                             const Tensor& tensor) {
  throw InvalidArgument("ppo_loss: {}: expected shape {}, got {}", argument, expected,
                        text(tensor.dims()));
}

void expect_present(const Tensor& tensor, const char* argument) {
  if (tensor.present()) return;
  throw InvalidArgument("ppo_loss: {}: expected a tensor, got None", argument);
}

void expect_device(const Tensor& tensor, const char* argument, const PpoLossCall& call) {
  if (tensor.device == call.device) return;
  throw InvalidArgument("ppo_loss: {}: expected device {} (that of log_probs), got {}", argument,
                        text(call.device), text(tensor.device));
}

void expect_floats(const Tensor& tensor, const char* argument, const PpoLossCall& call) {
  expect_device(tensor, argument, call);
  if (is_floating(tensor.dtype)) return;
  throw InvalidArgument("ppo_loss: {}: expected a floating dtype, got {}", argument,
                        name(tensor.dtype));
}

void expect_integers(const Tensor& tensor, const char* argument, const PpoLossCall& call) {
  expect_device(tensor, argument, call);
  if (is_integer(tensor.dtype)) return;
  throw InvalidArgument("ppo_loss: {}: expected an integer dtype, got {}", argument,
                        name(tensor.dtype));
}

void expect_per_token(const Tensor& tensor, const char* argument, const PpoLossCall& call) {
  if (std::ranges::equal(tensor.dims(), call.log_probs.dims())) return;
  fail_shape(argument, text(call.log_probs.dims()) + " (that of log_probs)", tensor);
}

void expect_token_floats(const Tensor& tensor, const char* argument, const PpoLossCall& call) {
  expect_present(tensor, argument);
  expect_floats(tensor, argument, call);
  expect_per_token(tensor, argument, call);
}

void expect_token_or_sequence_floats(const Tensor& tensor, const char* argument,
                                     const PpoLossCall& call) {
  expect_floats(tensor, argument, call);
  if (std::ranges::equal(tensor.dims(), call.log_probs.dims())) return;
  const std::int64_t sequences = call.num_sequences();
  const bool is_column = tensor.rank == 2 && tensor.shape[1] == 1 && tensor.shape[0] == sequences;
  if (is_column || (tensor.rank == 1 && tensor.shape[0] == sequences)) return;
  fail_shape(
      argument,
      text(call.log_probs.dims()) + " or [" + std::to_string(sequences) + "] (one a sequence)",
      tensor);
}

void check_layout(const PpoLossCall& call) {
  const Tensor& tokens = call.log_probs;
  expect_present(tokens, "log_probs");
  expect_floats(tokens, "log_probs", call);
  if (call.cu_seqlens.present()) {
    if (tokens.rank != 1) fail_shape("log_probs", "[N] with cu_seqlens", tokens);
    expect_integers(call.cu_seqlens, "cu_seqlens", call);
    if (call.cu_seqlens.rank != 1 || call.cu_seqlens.shape[0] < 1) {
      fail_shape("cu_seqlens", "[B + 1]", call.cu_seqlens);
    }
  } else if (tokens.rank != 1 && tokens.rank != 2) {
    fail_shape("log_probs", "[B, T], or [N] with cu_seqlens", tokens);
  }
  if (tokens.num_elements() > k_most_tokens) {
    throw InvalidArgument("ppo_loss: log_probs: expected at most 2^36 tokens, got {}",
                          tokens.num_elements());
  }
}

void check_groups(const PpoLossCall& call) {
  const std::int64_t sequences = call.num_sequences();
  if (call.group_starts.present()) {
    expect_integers(call.group_starts, "group_boundaries", call);
    if (call.group_starts.rank != 1 || call.group_starts.shape[0] < 1) {
      fail_shape("group_boundaries", "[P + 1]", call.group_starts);
    }
  } else if (call.group_size > 0 && sequences % call.group_size != 0) {
    throw InvalidArgument(
        "ppo_loss: samples_per_prompt: expected a divisor of the {} sequences, got {}", sequences,
        call.group_size);
  }
}

void check_global(const GlobalCount& count, const char* argument, const PpoLossCall& call) {
  if (!count.tensor.present()) return;
  expect_device(count.tensor, argument, call);
  if (count.tensor.dtype == DType::i64 && count.tensor.num_elements() == 1) return;
  throw InvalidArgument("ppo_loss: {}: expected one int64, got {} of shape {}", argument,
                        name(count.tensor.dtype), text(count.tensor.dims()));
}

void check_forward(const PpoLossCall& call) {
  check_layout(call);
  expect_token_floats(call.old_log_probs, "old_log_probs", call);
  expect_present(call.advantages, "advantages");
  expect_token_or_sequence_floats(call.advantages, "advantages", call);
  if (call.mask.present()) {
    const DType dtype = call.mask.dtype;
    expect_device(call.mask, "loss_mask", call);
    if (dtype != DType::boolean && !is_integer(dtype) && !is_floating(dtype)) {
      throw InvalidArgument(
          "ppo_loss: loss_mask: expected a bool, integer or floating dtype, got {}", name(dtype));
    }
    expect_per_token(call.mask, "loss_mask", call);
  }
  if (call.choices.correction != kNoCorrection) {
    expect_token_floats(call.rollout_log_probs, "rollout_logprobs", call);
  }
  if (call.choices.kl != kNoKl) expect_token_floats(call.ref_log_probs, "ref_log_probs", call);
  if (call.choices.entropy != 0) expect_token_floats(call.entropy, "entropy", call);
  if (call.weights.present()) expect_token_or_sequence_floats(call.weights, "loss_weights", call);
  check_groups(call);
  check_global(call.global_tokens, "global_tokens", call);
  check_global(call.global_sequences, "global_sequences", call);
  check_global(call.global_groups, "global_groups", call);
}

void check_backward(const PpoLossCall& call) {
  expect_present(call.upstream, "grad_output");
  expect_device(call.upstream, "grad_output", call);
  if (call.upstream.dtype != DType::f32 || call.upstream.num_elements() != 1) {
    throw InvalidArgument("ppo_loss: grad_output: expected one float32, got {} of shape {}",
                          name(call.upstream.dtype), text(call.upstream.dims()));
  }
}

}  // namespace

void check_ppo_loss(const jit::OpCall& base) {
  const auto& call = static_cast<const PpoLossCall&>(base);
  call.pass == jit::Pass::fwd ? check_forward(call) : check_backward(call);
}

}  // namespace rlk
