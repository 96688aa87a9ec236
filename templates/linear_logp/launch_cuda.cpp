// SPDX-License-Identifier: Apache-2.0
// The launch sequence of kernel.cuh. Strips, waves and copies are chosen here, for memory alone:
// results do not depend on them.
#include "runtime/cuda/cuda_loader.hpp"
#include "templates/common/device_errors.hpp"
#include "templates/common/logp/host.hpp"
#include "templates/linear_logp/cuda_plan.hpp"

#include <algorithm>
#include <limits>
#include <string>

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
  void step(int step, Int64 blocks, int threads, const Args& args, int shared_bytes = 0,
            const LinearLogpCudaMaps* maps = nullptr, int cluster = 1) {
    if (blocks == 0) return;
    void* arguments[] = {const_cast<Args*>(&args), const_cast<LinearLogpCudaMaps*>(maps)};
    entry(kernel_, step)
        .launch(device_, stream_,
                {{static_cast<unsigned>(blocks)},
                 {static_cast<unsigned>(threads)},
                 static_cast<unsigned>(shared_bytes),
                 static_cast<unsigned>(cluster)},
                arguments);
  }
  void pack(int step_of_pack, std::span<const CudaCopy> copies) {
    constexpr long long k_most_blocks = 1024;  // few, as most copies are skipped on the device
    for (const auto& copy : copies) {
      step(step_of_pack, std::min(copy.num_rows, k_most_blocks), 256, copy);
    }
  }
  void zero(const Tensor& tensor) {
    zero(tensor.data, static_cast<std::size_t>(tensor.num_elements()) * size_bytes(tensor.dtype));
  }
  void zero(void* data, std::size_t bytes) {
    if (bytes == 0) return;
    const DeviceGuard guard(driver_, device_);
    driver_.check(
        driver_.table().memset_d8_async(reinterpret_cast<std::uint64_t>(data), 0, bytes, stream_),
        "cuMemsetD8Async");
  }

 private:
  const LoadedKernel& kernel_;
  DeviceOrdinal device_;
  Stream stream_;
  Driver& driver_;
};

// Tile of the loop of sm_90a that the kernel was compiled for.
const LinearLogpSm90Tile& sm90_tile(const LoadedKernel& kernel) {
  return kLinearLogpSm90Tiles[std::max<Int64>(kernel.constants[k_linear_logp_tile], 0)];
}

bool writes_nothing(const LinearLogpCall& call) {
  if (call.pass == jit::Pass::fwd) return call.target.num_elements() == 0;
  return !call.grad_hidden.present() && !call.grad_weight.present() && !call.grad_bias.present();
}

// The forward's main step: its tiles, and for the loop of sm_90a the matrices.
struct MainStep {
  int rows, threads, shared_bytes;  // rows: of a cluster's tiles
  Int64 most_blocks = std::numeric_limits<Int64>::max();
  int cluster = 1;  // blocks
  LinearLogpCudaMaps maps{};
};

MainStep main_step_sm90(Driver& driver, const LinearLogpCall& call, const CudaPlan& plan,
                        const LinearLogpSm90Tile& tile, int max_sms) {
  const int num_sms = driver.device(call.device.index).num_sms;
  const int most_sms = max_sms > 0 ? std::min(max_sms, num_sms) : num_sms;
  MainStep main{tile.rows_of_cluster(), 384, tile.shared_bytes(),
                std::max(most_sms / tile.cluster, 1) * tile.cluster, tile.cluster};
  const auto& args = plan.args;
  const DType dtype = call.hidden.dtype;
  if (args.num_rows > std::numeric_limits<int>::max()) {  // a tensor map's coordinates are ints
    throw Unsupported(Fault{"linear_logp", "hidden", "fewer than 2^31 rows on sm_90a",
                            std::to_string(args.num_rows)});
  }
  const DeviceOrdinal device = call.device.index;
  make_tensor_map(&main.maps.hidden, driver, device, dtype, plan.hidden, tile.rows);
  main.maps.gathered = main.maps.hidden;
  if (plan.gathered.data != plan.hidden.data) {
    make_tensor_map(&main.maps.gathered, driver, device, dtype, plan.gathered, tile.rows);
  }
  make_tensor_map(&main.maps.weight, driver, device, dtype,
                  {args.weight, args.vocab, args.dim, args.weight_pitch}, kLogpLeaf / tile.cluster);
  return main;
}

void launch_fwd(Queue& queue, CudaPlan& plan, const MainStep& main) {
  auto& args = plan.args;
  queue.pack(k_fwd_pack, plan.row_copies());
  if (args.rows != nullptr) queue.step(k_fwd_rows, 1, 1024, args);
  queue.pack(k_fwd_pack, plan.operand_copies());
  const Int64 leaves = logp_num_leaves(args.vocab);
  const auto tiles_of = [&](Int64 first) {
    return ceil_div(std::min(args.strip_rows, args.num_rows - first), main.rows) * leaves *
           main.cluster;
  };
  // With a block for each tile no block asks for another.
  if (args.next_tile != nullptr && tiles_of(0) > main.most_blocks) {
    queue.zero(args.next_tile, static_cast<std::size_t>(ceil_div(args.num_rows, args.strip_rows)) *
                                   sizeof(unsigned));
  }
  args.group_tiles = linear_logp_group_tiles(main.rows, args.dim * plan.element_bytes);
  for (Int64 first = 0; first < args.num_rows; first += args.strip_rows) {
    args.first_row = first;
    queue.step(k_fwd_main, std::min(tiles_of(first), main.most_blocks), main.threads, args,
               main.shared_bytes, &main.maps, main.cluster);
    queue.step(k_fwd_merge, ceil_div(args.strip_rows, kLinearLogpMergeRows),
               32 * kLinearLogpMergeRows, args);
    if (args.next_tile != nullptr) ++args.next_tile;
  }
}

void launch_bwd(Queue& queue, CudaPlan& plan, const CudaTile& logits, const CudaTile& gradient) {
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
    args.group_tiles = linear_logp_group_tiles(logits.rows, args.dim * plan.element_bytes);
    queue.step(k_bwd_dz, ceil_div(args.num_rows, logits.rows) * ceil_div(args.wave_cols, kLogpLeaf),
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

bool linear_logp_uses_sm90_loop(int x, Target target) { return x != 1 && target == Target::sm_90a; }

int linear_logp_cuda_shared_bytes(int x, Target target, jit::Pass pass, int tile) {
  if (pass == jit::Pass::fwd && linear_logp_uses_sm90_loop(x, target)) {
    return kLinearLogpSm90Tiles[std::max(tile, 0)].shared_bytes();
  }
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
  if (settings.validate_sync) {
    validate_logp_cuda(driver, call, call.hidden, call.weight.shape[0]);
  }
  if (writes_nothing(call)) return;
  const int x = type_code(call.hidden.dtype);
  const int limit = shared_limit_bytes(kernel.target);
  const CudaTile logits = linear_logp_cuda_logits_tile(x, limit);
  const CudaTile gradient = linear_logp_cuda_gradient_tile(x, limit);

  const LinearLogpSm90Tile& sm90 = sm90_tile(kernel);
  CudaLoop loop{logits.rows};
  if (call.pass == jit::Pass::fwd && linear_logp_uses_sm90_loop(x, kernel.target)) {
    loop = {sm90.rows_of_cluster(), true, sm90.dynamic};
  }

  Arena sizes(nullptr);
  plan_linear_logp_cuda(sizes, call, loop, settings.workspace_bytes);
  Arena memory(sizes.bytes() == 0 ? nullptr : call.workspace->allocate(sizes.bytes()));
  CudaPlan plan = plan_linear_logp_cuda(memory, call, loop, settings.workspace_bytes);
  plan.args.error = &error;
  plan.args.op = "linear_logp";

  Queue queue(kernel, call, driver);
  if (call.pass == jit::Pass::fwd) {
    launch_fwd(queue, plan,
               loop.is_sm90 ? main_step_sm90(driver, call, plan, sm90, settings.max_sms)
                            : MainStep{logits.rows, logits.threads(),
                                       logits.shared_bytes(plan.element_bytes)});
  } else {
    // No step writes the rows that are not active.
    if (plan.args.rows != nullptr && call.grad_hidden.present()) queue.zero(call.grad_hidden);
    launch_bwd(queue, plan, logits, gradient);
  }
}

}  // namespace rlk
