// SPDX-License-Identifier: Apache-2.0
// Entry points of ppo_loss, and the arguments that both backends share.
#include "templates/common/boundaries.hpp"
#include "templates/common/dense.hpp"
#include "templates/ppo_loss/op.hpp"

#include <algorithm>

namespace rlk {
namespace {

constexpr const char* k_cpu_fwd[] = {"rlk_ppo_loss_fwd_count", "rlk_ppo_loss_fwd_weigh",
                                     "rlk_ppo_loss_fwd_slope", "rlk_ppo_loss_fwd_main",
                                     "rlk_ppo_loss_fwd_finish"};
constexpr const char* k_cuda_fwd[] = {"rlk_ppo_loss_fwd_pack",  "rlk_ppo_loss_fwd_count",
                                      "rlk_ppo_loss_fwd_weigh", "rlk_ppo_loss_fwd_slope",
                                      "rlk_ppo_loss_fwd_main",  "rlk_ppo_loss_fwd_finish"};
constexpr const char* k_bwd[] = {"rlk_ppo_loss_bwd_main"};

// Null where the tensor is absent.
template <class T>
T* pointer(const Tensor& tensor) {
  return static_cast<T*>(tensor.data);
}

}  // namespace

std::span<const char* const> ppo_loss_entries(jit::Pass pass, Backend backend) {
  if (pass == jit::Pass::bwd) return k_bwd;
  if (backend == Backend::cuda) return k_cuda_fwd;
  return k_cpu_fwd;
}

PpoLossArgs ppo_loss_args(const PpoLossCall& call) {
  PpoLossArgs args{};
  args.num_tokens = call.log_probs.num_elements();
  args.num_sequences = call.num_sequences();
  args.length = call.log_probs.rank == 2 ? call.log_probs.shape[1] : args.num_tokens;
  const auto is_of_sequence = [&](const Tensor& tensor) {
    return tensor.present() && !std::ranges::equal(tensor.dims(), call.log_probs.dims());
  };
  args.advantage_is_of_sequence = is_of_sequence(call.advantages);
  args.weight_is_of_sequence = is_of_sequence(call.weights);
  args.importance_is_of_sequence = is_of_sequence(call.importance_weights);
  args.choices = call.choices;
  args.values = call.values;
  const auto global = [](const jit::Count& count) {
    return LossGlobal{count.present() ? static_cast<const long long*>(count.data) : nullptr,
                      count.value};
  };
  args.reductions = {call.reduction,
                     call.kl_reduction,
                     call.length,
                     global(call.global_tokens),
                     global(call.global_sequences),
                     global(call.global_groups)};
  args.loss = pointer<float>(call.loss);
  args.grad = pointer<float>(call.grad);
  args.grad_entropy = pointer<float>(call.grad_entropy);
  args.counts = pointer<long long>(call.counts);
  args.float_metrics = pointer<float>(call.float_metrics);
  args.exact = pointer<long long>(call.exact);
  args.own_pieces = pointer<PpoLossPiece>(call.own_pieces);
  args.own_slopes = pointer<PpoLossPiece>(call.own_slopes);
  args.pieces = pointer<PpoLossPiece>(call.pieces);
  args.slopes = pointer<PpoLossPiece>(call.slopes);
  args.num_pieces = call.pieces.present() ? call.pieces.shape[0] : 0;
  args.totals = pointer<long long>(call.totals);
  args.own_total = pointer<PpoLossPartial>(call.own_total);
  if (call.partials.present()) {  // read: what main, which is not run, writes
    args.partials = pointer<PpoLossPartial>(call.partials);
    args.num_items = call.partials.shape[0];
  }
  // Without groups each sequence is one.
  args.group_size = call.group_size > 0 ? call.group_size : 1;
  args.num_groups = call.group_starts.present() ? call.group_starts.shape[0] - 1
                                                : args.num_sequences / args.group_size;
  return args;
}

void expect_ppo_loss_values(const PpoLossCall& call) {
  templates::expect_boundaries({call, call.cu_seqlens, "cu_seqlens"}, call.log_probs.num_elements(),
                               0);
  templates::expect_boundaries({call, call.group_starts, "group_boundaries"}, call.num_sequences(),
                               1);
  templates::dense_mask(ppo_loss_mask(call));
  for (const auto& [count, argument] : ppo_loss_counts(call)) {
    if (!count->present()) continue;
    // A weight of 1 / 0 is none: the loss would be 0 without a word.
    const long long value = *static_cast<const long long*>(count->data);
    if (value <= 0) Given{call, *count, argument}.fail("a number above 0", std::to_string(value));
  }
}

void launch_ppo_loss(const LoadedKernel& kernel, const jit::OpCall& base,
                     const jit::LaunchSettings& settings) {
  const auto& call = static_cast<const PpoLossCall&>(base);
  backend(kernel.target) == Backend::cuda ? launch_ppo_loss_cuda(kernel, call, settings)
                                          : launch_ppo_loss_cpu(kernel, call);
}

}  // namespace rlk
