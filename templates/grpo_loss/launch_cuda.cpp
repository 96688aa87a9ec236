// SPDX-License-Identifier: Apache-2.0
// The launch of kernel.cuh. How many rows a multiprocessor has at once, and what it keeps of them,
// shows nowhere in the results.
#include "runtime/cuda/cuda_loader.hpp"
#include "runtime/error.hpp"
#include "templates/common/device_errors.hpp"
#include "templates/common/expect.hpp"
#include "templates/common/logp/host.hpp"
#include "templates/grpo_loss/cuda_args.h"
#include "templates/grpo_loss/op.hpp"

#include <algorithm>

namespace rlk {
namespace {

using namespace runtime::cuda;

enum Step { k_pack, k_main };

constexpr Int64 k_most_blocks = Int64{1} << 30;
constexpr Int64 k_most_blocks_of_sm = 4;
constexpr Int64 k_block_bytes = 1024;  // that the device takes of shared memory for each block
// With fewer rows a row is worth more blocks than one, and the last wave of blocks costs too much.
constexpr Int64 k_least_rows_of_sm = 16;

struct Plan {
  GrpoLossCudaArgs args{};
  LogpCudaCopies copies;
};

template <class T>
T* pointer(const Tensor& tensor) {
  return tensor.present() ? static_cast<T*>(tensor.data) : nullptr;
}

PpoLossArgs loss_args(Arena& arena, const PpoLossCall& call) {
  PpoLossArgs args = ppo_loss_args(call);
  args.starts = pointer<long long>(call.cu_seqlens);
  args.old_log_probs = pointer<float>(call.old_log_probs);
  args.rollout_log_probs = pointer<float>(call.rollout_log_probs);
  args.ref_log_probs = pointer<float>(call.ref_log_probs);
  args.advantages = pointer<float>(call.advantages);
  args.sequence_weight = pointer<float>(call.sequence_weight);
  args.sequence_kl_weight = pointer<float>(call.sequence_kl_weight);
  args.sequence_statistic = pointer<float>(call.sequence_statistic);
  args.grad = arena.take<float>(args.num_tokens);
  return args;
}

Plan make_plan(Arena& arena, const GrpoLossCall& call) {
  Plan plan;
  GrpoLossCudaArgs& args = plan.args;
  args.vocab = call.vocab();
  plan.copies.set_rows(arena, call, args);
  args.logits = logp_cuda_matrix(call.logits);
  args.grad_logits = logp_cuda_matrix(call.grad_logits);
  args.op = "grpo_loss";
  args.loss = loss_args(arena, call.loss);
  args.grad = {args.loss.grad, 1, type_code(DType::f32)};
  return plan;
}

}  // namespace

void check_grpo_loss(const jit::OpCall& base) {
  const auto& call = static_cast<const GrpoLossCall&>(base);
  check_logits(call);
  if (grpo_loss_takes(call.vocab())) return;
  Given{call, call.logits, "logits"}.fail(
      fmt::format("at most {} columns", kLogpMostSharedLeaves * kLogpLeaf),
      text(call.logits.dims()));
}

bool grpo_loss_takes(std::int64_t vocab) { return logp_num_leaves(vocab) <= kLogpMostSharedLeaves; }

bool grpo_loss_fits(const Tensor& logits, int num_sms) {
  if (logits.rank == 0 || logits.num_elements() == 0) return false;
  const Int64 vocab = logits.shape[logits.rank - 1], rows = logits.num_elements() / vocab;
  return grpo_loss_takes(vocab) && rows >= k_least_rows_of_sm * num_sms;
}

GrpoLossRows grpo_loss_rows(std::int64_t vocab, int element_bytes, int most_shared) {
  const Int64 leaves = logp_num_leaves(vocab), leaf_bytes = kLogpLeaf * element_bytes;
  const Int64 fixed = grpo_fixed_bytes(leaves), all = most_shared + k_block_bytes;
  const Int64 whole = fixed + leaves * leaf_bytes + k_block_bytes;
  const Int64 blocks = std::clamp(all / whole, Int64{1}, k_most_blocks_of_sm);
  const Int64 kept = std::min((all / blocks - k_block_bytes - fixed) / leaf_bytes, leaves);
  return {static_cast<int>(blocks), static_cast<int>(kGrpoThreads / blocks / 32 * 32),
          static_cast<int>(fixed + kept * leaf_bytes), kept};
}

int grpo_loss_shared_bytes(const jit::Specialization& spec) {
  const Int64 vocab = spec.values[1] < 0 ? kLogpMostSharedLeaves * kLogpLeaf : spec.values[1];
  const int limit = shared_limit_bytes(spec.target);
  return grpo_loss_rows(vocab, spec.values[0] == 1 ? 4 : 2, limit).shared_bytes;
}

void launch_grpo_loss(const LoadedKernel& kernel, const jit::OpCall& base,
                      const jit::LaunchSettings& settings) {
  const auto& call = static_cast<const GrpoLossCall&>(base);
  Driver& driver = entry(kernel, 0).driver();
  DeviceError& error = templates::device_error(driver, call.device.index);
  templates::raise_device_error(error);
  const std::int64_t vocab = call.vocab();
  if (settings.validate_sync) validate_logp_cuda(driver, call, call.logits, vocab);
  Arena sizes(nullptr);
  make_plan(sizes, call);
  Arena memory(call.workspace->allocate(sizes.bytes()));
  Plan plan = make_plan(memory, call);
  const DeviceInfo& device = driver.device(call.device.index);
  const GrpoLossRows rows = grpo_loss_rows(vocab, static_cast<int>(size_bytes(call.logits.dtype)),
                                           device.shared_bytes_optin);
  GrpoLossCudaArgs& args = plan.args;
  args.error = &error;
  args.num_kept = rows.num_kept;
  args.num_resident = Int64{rows.blocks} * device.num_sms;

  const auto launch = [&](int step, Int64 blocks, int threads, auto& of_step, int shared_bytes) {
    void* arguments[] = {&of_step};
    entry(kernel, step)
        .launch(call.device.index, static_cast<Stream>(call.stream),
                {{static_cast<unsigned>(blocks)},
                 {static_cast<unsigned>(threads)},
                 static_cast<unsigned>(shared_bytes)},
                arguments);
  };
  for (CudaCopy copy : plan.copies.all()) {
    launch(k_pack, std::min<Int64>(copy.num_rows, 1024), 256, copy, 0);
  }
  launch(k_main, std::min<Int64>(args.num_rows, k_most_blocks), rows.threads, args,
         rows.shared_bytes);
}

}  // namespace rlk
