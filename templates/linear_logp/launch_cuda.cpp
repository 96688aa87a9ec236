// SPDX-License-Identifier: Apache-2.0
// The launch sequence of kernel.cuh. Strips, waves and copies are chosen here, for memory alone:
// results do not depend on them.
#include "templates/linear_logp/launch_cuda.hpp"

#include "runtime/cuda/cuda_loader.hpp"
#include "templates/common/device_errors.hpp"
#include "templates/linear_logp/check.hpp"
#include "templates/linear_logp/cuda_plan.hpp"
#include "templates/linear_logp/validate_cuda.hpp"

#include <algorithm>

namespace rlk {
namespace {

using namespace runtime::cuda;

// In the order of the entries below.
enum FwdStep { k_fwd_rows, k_fwd_pack, k_fwd_main, k_fwd_merge };
constexpr const char* k_fwd_entries[] = {"rlk_linear_logp_fwd_rows", "rlk_linear_logp_fwd_pack",
                                         "rlk_linear_logp_fwd_main", "rlk_linear_logp_fwd_merge"};
enum BwdStep {
  k_bwd_rows,
  k_bwd_pack,
  k_bwd_grads,
  k_bwd_shift,
  k_bwd_dz,
  k_bwd_dh,
  k_bwd_dw,
  k_bwd_db
};
constexpr const char* k_bwd_entries[] = {"rlk_linear_logp_bwd_rows",  "rlk_linear_logp_bwd_pack",
                                         "rlk_linear_logp_bwd_grads", "rlk_linear_logp_bwd_shift",
                                         "rlk_linear_logp_bwd_dz",    "rlk_linear_logp_bwd_dh",
                                         "rlk_linear_logp_bwd_dw",    "rlk_linear_logp_bwd_db"};

// Queues steps of one kernel on one stream.
class Queue {
 public:
  Queue(const LoadedKernel& kernel, const LinearLogpCall& call, Driver& driver)
      : kernel_(kernel),
        device_(call.device.index),
        stream_(static_cast<Stream>(call.stream)),
        driver_(driver) {}

  template <class Args>
  void step(int step, Int64 blocks, int threads, const Args& args, int shared_bytes = 0) {
    if (blocks == 0) return;
    void* arguments[] = {const_cast<Args*>(&args)};
    entry(kernel_, step)
        .launch(device_, stream_,
                {{static_cast<unsigned>(blocks)},
                 {static_cast<unsigned>(threads)},
                 static_cast<unsigned>(shared_bytes)},
                arguments);
  }
  void pack(int step_of_pack, std::span<const LinearLogpCudaCopy> copies) {
    constexpr long long k_most_blocks = 4096;
    for (const auto& copy : copies) {
      step(step_of_pack, std::min(copy.num_rows, k_most_blocks), 256, copy);
    }
  }
  void zero(const Tensor& tensor) {
    const auto bytes = static_cast<std::size_t>(tensor.num_elements()) * size_bytes(tensor.dtype);
    if (bytes == 0) return;
    const DeviceGuard guard(driver_, device_);
    driver_.check(driver_.table().memset_d8_async(reinterpret_cast<std::uint64_t>(tensor.data), 0,
                                                  bytes, stream_),
                  "cuMemsetD8Async");
  }

 private:
  const LoadedKernel& kernel_;
  DeviceOrdinal device_;
  Stream stream_;
  Driver& driver_;
};

// Rows of tiles that a group has: what it reads of the hidden matrix stays in the L2 cache.
int group_of_logits(const LinearLogpCudaTile& tile, Int64 row_bytes) {
  return static_cast<int>(std::max<Int64>(1, (Int64{16} << 20) / (tile.rows * row_bytes)));
}

bool writes_nothing(const LinearLogpCall& call) {
  if (call.pass == jit::Pass::fwd) return call.target.num_elements() == 0;
  return !call.grad_hidden.present() && !call.grad_weight.present() && !call.grad_bias.present();
}

void launch_fwd(Queue& queue, CudaPlan& plan, const LinearLogpCudaTile& tile) {
  auto& args = plan.args;
  queue.pack(k_fwd_pack, plan.row_copies());
  if (args.rows != nullptr) queue.step(k_fwd_rows, 1, 1024, args);
  queue.pack(k_fwd_pack, plan.operand_copies());
  const Int64 leaves = ceil_div(args.vocab, kLinearLogpLeaf);
  args.group_tiles = group_of_logits(tile, args.dim * plan.element_bytes);
  for (Int64 first = 0; first < args.num_rows; first += args.strip_rows) {
    args.first_row = first;
    queue.step(k_fwd_main, args.strip_rows / tile.rows * leaves, tile.threads(), args,
               tile.shared_bytes(plan.element_bytes));
    queue.step(k_fwd_merge, ceil_div(args.strip_rows, 32), 512, args);
  }
}

void launch_bwd(Queue& queue, CudaPlan& plan, const LinearLogpCudaTile& logits,
                const LinearLogpCudaTile& gradient) {
  auto& args = plan.args;
  queue.pack(k_bwd_pack, plan.row_copies());
  if (args.rows != nullptr) queue.step(k_bwd_rows, 1, 1024, args);
  queue.pack(k_bwd_pack, plan.operand_copies());
  queue.step(k_bwd_grads, 1, 512, args);
  if (args.hidden_shifted != args.hidden) {
    queue.step(k_bwd_shift, std::min<Int64>(args.num_rows, 4096), 256, args);
  }
  const Int64 dim_tiles = ceil_div(args.dim, gradient.cols);
  const int shared_bytes = gradient.shared_bytes(plan.element_bytes);
  for (Int64 begin = 0; begin < args.vocab; begin += args.wave_pitch) {
    args.wave_begin = begin;
    args.wave_cols = std::min(args.wave_pitch, args.vocab - begin);
    args.group_tiles = group_of_logits(logits, args.dim * plan.element_bytes);
    queue.step(k_bwd_dz,
               ceil_div(args.num_rows, logits.rows) * ceil_div(args.wave_cols, kLinearLogpLeaf),
               logits.threads(), args, logits.shared_bytes(plan.element_bytes));
    // As many tiles as run at once, with all columns of the hidden size.
    args.group_tiles = static_cast<int>(std::max<Int64>(1, 128 / dim_tiles));
    if (args.grad_hidden != nullptr) {
      queue.step(k_bwd_dh, ceil_div(args.num_rows, gradient.rows) * dim_tiles, gradient.threads(),
                 args, shared_bytes);
    }
    if (args.grad_weight != nullptr) {
      queue.step(k_bwd_dw, ceil_div(args.wave_cols, gradient.rows) * dim_tiles, gradient.threads(),
                 args, shared_bytes);
    }
    if (args.grad_bias != nullptr) {
      queue.step(k_bwd_db, ceil_div(args.wave_cols, 32), 256, args);
    }
  }
}

}  // namespace

std::span<const char* const> linear_logp_cuda_entries(jit::Pass pass) {
  if (pass == jit::Pass::fwd) return k_fwd_entries;
  return k_bwd_entries;
}

int linear_logp_cuda_shared_bytes(int x, Target target, jit::Pass pass) {
  const int limit = shared_limit_bytes(target);
  const int element_bytes = x == 1 ? 4 : 2;
  const int logits = linear_logp_cuda_logits_tile(x, limit).shared_bytes(element_bytes);
  if (pass == jit::Pass::fwd) return logits;
  return std::max(logits, linear_logp_cuda_gradient_tile(x, limit).shared_bytes(element_bytes));
}

void launch_linear_logp_cuda(const LoadedKernel& kernel, const LinearLogpCall& call,
                             const jit::LaunchSettings& settings) {
  Driver& driver = entry(kernel, 0).driver();
  DeviceError& error = templates::device_error(driver, call.device.index);
  templates::raise_device_error(error);
  if (settings.validate_sync) validate_linear_logp_cuda(driver, call);
  if (writes_nothing(call)) return;
  const int x = cuda_type(call.hidden.dtype);
  const int limit = shared_limit_bytes(kernel.target);
  const LinearLogpCudaTile logits = linear_logp_cuda_logits_tile(x, limit);
  const LinearLogpCudaTile gradient = linear_logp_cuda_gradient_tile(x, limit);

  Arena sizes(nullptr);
  plan_linear_logp_cuda(sizes, call, logits, settings.workspace_bytes);
  Arena memory(sizes.bytes() == 0 ? nullptr : call.workspace->allocate(sizes.bytes()));
  CudaPlan plan = plan_linear_logp_cuda(memory, call, logits, settings.workspace_bytes);
  plan.args.error = &error;
  plan.args.op = "linear_logp";

  Queue queue(kernel, call, driver);
  if (call.pass == jit::Pass::fwd) {
    launch_fwd(queue, plan, logits);
  } else {
    // No step writes the rows that are not active.
    if (plan.args.rows != nullptr && call.grad_hidden.present()) queue.zero(call.grad_hidden);
    launch_bwd(queue, plan, logits, gradient);
  }
}

}  // namespace rlk
