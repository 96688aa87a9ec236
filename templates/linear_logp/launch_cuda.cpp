// SPDX-License-Identifier: Apache-2.0
// The launch sequence of kernel.cuh. Strips, waves and copies are chosen here, for memory alone:
// results do not depend on them.
#include "runtime/cuda/cuda_loader.hpp"
#include "templates/common/device_errors.hpp"
#include "templates/common/logp/host.hpp"
#include "templates/linear_logp/cuda_plan.hpp"

#include <algorithm>
#include <bit>
#include <limits>
#include <string>

namespace rlk {
namespace {

using namespace runtime::cuda;

// In the order of the entries below.
enum FwdStep { k_fwd_rows, k_fwd_pack, k_fwd_main, k_fwd_merge, k_fwd_join };
constexpr const char* k_fwd_entries[] = {"rlk_linear_logp_fwd_rows", "rlk_linear_logp_fwd_pack",
                                         "rlk_linear_logp_fwd_main", "rlk_linear_logp_fwd_merge",
                                         "rlk_linear_logp_fwd_join"};
enum BwdStep {
  k_bwd_rows,
  k_bwd_pack,
  k_bwd_grads,
  k_bwd_shift,
  k_bwd_dz,
  k_bwd_turn,
  k_bwd_dh,
  k_bwd_join,
  k_bwd_dw,
  k_bwd_db,
  k_bwd_carry
};
constexpr const char* k_bwd_entries[] = {
    "rlk_linear_logp_bwd_rows",  "rlk_linear_logp_bwd_pack", "rlk_linear_logp_bwd_grads",
    "rlk_linear_logp_bwd_shift", "rlk_linear_logp_bwd_dz",   "rlk_linear_logp_bwd_turn",
    "rlk_linear_logp_bwd_dh",    "rlk_linear_logp_bwd_join", "rlk_linear_logp_bwd_dw",
    "rlk_linear_logp_bwd_db",    "rlk_linear_logp_bwd_carry"};

// Queues steps of one kernel on one stream.
class Queue {
 public:
  Queue(const LoadedKernel& kernel, const LinearLogpCall& call, Driver& driver)
      : kernel_(kernel),
        device_(call.device.index),
        stream_(static_cast<Stream>(call.stream)),
        driver_(driver) {}

  template <class Args, class Maps = LinearLogpCudaMaps>
  void step(int step, Int64 blocks, int threads, const Args& args, int shared_bytes = 0,
            const Maps* maps = nullptr, int cluster = 1, unsigned blocks_y = 1) {
    if (blocks == 0) return;
    void* arguments[] = {const_cast<Args*>(&args), const_cast<Maps*>(maps)};
    entry(kernel_, step)
        .launch(device_, stream_,
                {{static_cast<unsigned>(blocks), blocks_y},
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

// Tile of logits of the loop of sm_90a that the kernel was compiled for.
LinearLogpSm90Tile sm90_tile(const LoadedKernel& kernel, jit::Pass pass) {
  const auto& constants = kernel.constants;
  if (pass == jit::Pass::bwd) {
    return linear_logp_sm90_grad_tile(constants[k_linear_logp_softcap] != 0 ||
                                      constants[k_linear_logp_entropy] != 0);
  }
  return linear_logp_sm90_tile(static_cast<int>(constants[k_linear_logp_tile]),
                               constants[k_linear_logp_keep] != 0);
}
int shared_bytes(const LinearLogpSm90Tile& tile, bool stores) {
  return tile.shared_bytes() + (stores ? kLinearLogpSm90StoreBytes : 0);
}

bool writes_nothing(const LinearLogpCall& call) {
  if (call.pass == jit::Pass::fwd) return call.target.num_elements() == 0;
  if (call.chunk != nullptr) return false;
  return !call.grad_hidden.present() && !call.grad_weight.present() && !call.grad_bias.present();
}

// The forward's main step: its tiles, and for the loop of sm_90a the matrices.
struct MainStep {
  int rows, threads, shared_bytes;  // rows: of a cluster's tiles
  Int64 most_blocks = std::numeric_limits<Int64>::max();
  int cluster = 1;  // blocks
  LinearLogpCudaMaps maps{};
};

void check_num_rows_sm90(const LinearLogpCudaArgs& args) {
  if (args.num_rows > std::numeric_limits<int>::max()) {  // a tensor map's coordinates are ints
    throw Unsupported(Fault{"linear_logp", "hidden", "fewer than 2^31 rows on sm_90a",
                            std::to_string(args.num_rows)});
  }
}

// As many blocks as run at once, in whole clusters; each stays for many tiles.
Int64 blocks_sm90(Driver& driver, const LinearLogpCall& call, int max_sms, int cluster = 1) {
  const int most = driver.device(call.device.index).sms_within(max_sms);
  return Int64{std::max(most / cluster, 1)} * cluster;
}

// Maps with boxes of 64 columns and `rows` rows.
class Mapper {
 public:
  Mapper(Driver& driver, const LinearLogpCall& call)
      : driver_(driver), device_(call.device.index), dtype_(call.hidden.dtype) {}
  void map(TensorMap& map, const MatrixView& matrix, int rows) const {
    make_tensor_map(&map, driver_, device_, dtype_, matrix, rows);
  }
  // Of the operands of logits.
  void map(LinearLogpCudaMaps& maps, const CudaPlan& plan, const LinearLogpSm90Tile& tile) const {
    map(maps.hidden, plan.hidden, tile.rows);
    maps.gathered = maps.hidden;
    if (plan.gathered.data != plan.hidden.data) map(maps.gathered, plan.gathered, tile.rows);
    map(maps.weight, weight(plan), kLogpLeaf / tile.cluster);
  }
  static MatrixView weight(const CudaPlan& plan) {
    const auto& args = plan.args;
    return {args.weight, args.vocab, args.dim, args.weight_pitch};
  }

 private:
  Driver& driver_;
  DeviceOrdinal device_;
  DType dtype_;
};

MainStep main_step_sm90(Driver& driver, const LinearLogpCall& call, const CudaPlan& plan,
                        const LinearLogpSm90Tile& tile, bool keeps, int max_sms) {
  check_num_rows_sm90(plan.args);
  MainStep main{tile.rows_of_cluster(), 384, shared_bytes(tile, keeps),
                blocks_sm90(driver, call, max_sms, tile.cluster), tile.cluster};
  Mapper(driver, call).map(main.maps, plan, tile);
  return main;
}

void launch_fwd(Queue& queue, CudaPlan& plan, const MainStep& main) {
  auto& args = plan.args;
  queue.pack(k_fwd_pack, plan.row_copies());
  if (args.rows != nullptr) queue.step(k_fwd_rows, 1, 1024, args);
  queue.pack(k_fwd_pack, plan.operand_copies());
  const Int64 leaves = args.leaves().count();
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

// The backward's products.
struct GradSteps {
  struct Tiles {
    int rows, cols, threads, shared_bytes;
  };
  Tiles logits, hidden, weight;
  Int64 most_blocks = std::numeric_limits<Int64>::max();
  LinearLogpCudaGradMaps maps{};
};

GradSteps grad_steps(const CudaTile& logits, const CudaTile& gradient, int element_bytes) {
  const auto tiles = [&](const CudaTile& tile) {
    return GradSteps::Tiles{tile.rows, tile.cols, tile.threads(), tile.shared_bytes(element_bytes)};
  };
  return {tiles(logits), tiles(gradient), tiles(gradient)};
}

GradSteps grad_steps_sm90(Driver& driver, const LinearLogpCall& call, const CudaPlan& plan,
                          const LinearLogpSm90Tile& tile, int max_sms) {
  check_num_rows_sm90(plan.args);
  const auto& args = plan.args;
  const auto tiles = [](const LinearLogpSm90GradientTile& of) {
    return GradSteps::Tiles{of.rows, of.cols, 384, of.shared_bytes()};
  };
  GradSteps steps{{tile.rows, kLogpLeaf, 384, shared_bytes(tile, true)},
                  tiles(kLinearLogpSm90HiddenTile),
                  tiles(kLinearLogpSm90WeightTile),
                  blocks_sm90(driver, call, max_sms)};
  const Mapper mapper(driver, call);
  auto& maps = steps.maps;
  mapper.map(maps, plan, tile);
  const MatrixView grad_logits{args.wave.grad_logits, args.num_rows, args.wave.pitch,
                               args.wave.pitch};
  mapper.map(maps.grad_logits, grad_logits, kLinearLogpSm90HiddenTile.rows);
  // What sums over rows read: from the rows on that wait.
  const auto over_rows = [&](TensorMap& map, MatrixView matrix) {
    matrix.data = static_cast<const std::byte*>(matrix.data) -
                  plan.carried_rows * matrix.pitch * plan.element_bytes;
    matrix.num_rows += plan.carried_rows;
    mapper.map(map, matrix, 64);
  };
  over_rows(maps.grad_logits_lanes, grad_logits);
  mapper.map(maps.weight_lanes, Mapper::weight(plan), 64);
  if (args.hidden_shifted != nullptr) {
    mapper.map(maps.hidden_lanes,
               {args.hidden_shifted, args.num_rows, args.dim, args.hidden_shifted_pitch}, 64);
    maps.gathered_lanes = maps.hidden_lanes;
  } else {
    over_rows(maps.hidden_lanes, plan.hidden);
    over_rows(maps.gathered_lanes, plan.gathered);
  }
  return steps;
}

// The products of one wave of columns.
class Wave {
 public:
  Wave(Queue& queue, LinearLogpCudaArgs& args, const GradSteps& steps)
      : queue_(queue), args_(args), steps_(steps) {}

  void launch(int element_bytes, bool ends_segments) {
    const auto& wave = args_.wave;
    args_.group_tiles = linear_logp_group_tiles(steps_.logits.rows, args_.dim * element_bytes);
    if (args_.wave_is_kept != 0) {
      turn_kept();
    } else {
      step(k_bwd_dz, steps_.logits,
           ceil_div(args_.num_rows, steps_.logits.rows) * wave.num_segments * wave.num_leaves);
    }
    if (args_.grad_hidden != nullptr) grad_hidden(ends_segments);
    if (args_.grad_weight != nullptr) {
      const auto& tile = steps_.weight;
      args_.group_tiles = group_of(tile);
      step(k_bwd_dw, tile,
           wave.num_segments * ceil_div(wave.width, tile.rows) * ceil_div(args_.dim, tile.cols));
    }
    if (args_.grad_bias != nullptr || args_.chunk.bias_sums != nullptr) {
      queue_.step(k_bwd_db, ceil_div(Int64{wave.num_segments} * wave.width, 32), 256, args_);
    }
  }

 private:
  // Eight strips of columns a block, and as many parts of the rows as fill the card.
  void turn_kept() {
    constexpr Int64 k_blocks = 2048;
    const Int64 strips =
        ceil_div(args_.wave.num_segments * ceil_div(args_.wave.width, kLinearLogpKeptStrip), 8);
    const Int64 parts = std::clamp<Int64>(k_blocks / strips, 1, ceil_div(args_.num_rows, 16));
    queue_.step(k_bwd_turn, strips, 256, args_, 0, static_cast<const LinearLogpCudaMaps*>(nullptr),
                1, static_cast<unsigned>(parts));
  }
  void step(int step, const GradSteps::Tiles& tiles, Int64 num_tiles) {
    queue_.step(step, std::min(num_tiles, steps_.most_blocks), tiles.threads, args_,
                tiles.shared_bytes, &steps_.maps);
  }
  // Rows of tiles that run at once with all columns of the hidden size.
  int group_of(const GradSteps::Tiles& tile) const {
    return static_cast<int>(std::max<Int64>(1, 128 / ceil_div(args_.dim, tile.cols)));
  }
  void grad_hidden(bool ends_segments) {
    const auto& tile = steps_.hidden;
    args_.group_tiles = group_of(tile);
    for (args_.first_row = 0; args_.first_row < args_.num_rows;
         args_.first_row += args_.strip_rows) {
      step(k_bwd_dh, tile,
           ceil_div(args_.strip_rows, tile.rows) * args_.wave.num_segments *
               ceil_div(args_.dim, tile.cols));
      if (ends_segments) queue_.step(k_bwd_join, args_.strip_rows, 256, args_);
    }
  }

  Queue& queue_;
  LinearLogpCudaArgs& args_;
  const GradSteps& steps_;
};

void launch_bwd(Queue& queue, CudaPlan& plan, const GradSteps& steps) {
  auto& args = plan.args;
  queue.pack(k_bwd_pack, plan.row_copies());
  queue.step(k_bwd_rows, 1, 1024, args);
  queue.pack(k_bwd_pack, plan.operand_copies());
  queue.step(k_bwd_grads, 1, 512, args);
  if (args.hidden_shifted != nullptr) {
    queue.step(k_bwd_shift, std::min<Int64>(args.num_rows, 4096), 256, args);
  }
  const LogpLeaves<kLogpLeaf> leaves = args.leaves();
  const int segments = leaves.count() / leaves.of_segment();
  if (args.next_tile != nullptr) {
    queue.zero(args.next_tile, static_cast<std::size_t>(plan.num_waves) * sizeof(unsigned));
  }
  for (int first = 0, index = 0; first < segments; first += plan.wave_segments, ++index) {
    args.wave.first_segment = first;
    args.wave.num_segments = std::min(plan.wave_segments, segments - first);
    // Sums of the waves before wait as the ones in the number of this wave: it is joined with
    // those that it completes, and the last one with all.
    const bool is_last = first + plan.wave_segments >= segments;
    const int completed = std::countr_one(static_cast<unsigned>(index));
    args.add_levels = is_last ? index : (1 << completed) - 1;
    args.to_level = is_last ? -1 : completed;
    args.wave_is_kept = first + args.wave.num_segments <= args.kept.num_segments ? 1 : 0;
    for (int leaf = 0; leaf < leaves.of_segment(); leaf += plan.wave_leaves) {
      args.wave.first_leaf = leaf;
      args.wave.num_leaves = std::min(plan.wave_leaves, leaves.of_segment() - leaf);
      args.wave.width = linear_logp_wave_width(leaves, args.wave);
      Wave(queue, args, steps)
          .launch(plan.element_bytes, leaf + plan.wave_leaves >= leaves.of_segment());
      if (args.next_tile != nullptr) ++args.next_tile;
    }
  }
  if (args.chunk.terms == nullptr || args.chunk.is_last != 0) return;
  queue.step(k_bwd_carry, ceil_div((args.wave.pitch + args.gathered_pitch) / 8, 256), 256, args);
}

}  // namespace

std::span<const char* const> linear_logp_cuda_entries(jit::Pass pass) {
  if (pass == jit::Pass::fwd) return k_fwd_entries;
  return k_bwd_entries;
}

bool linear_logp_uses_sm90_loop(int x, Target target) { return x != 1 && target == Target::sm_90a; }

int linear_logp_cuda_shared_bytes(int x, Target target, jit::Pass pass, int tile, bool keeps) {
  if (linear_logp_uses_sm90_loop(x, target)) {
    if (pass == jit::Pass::fwd) return shared_bytes(linear_logp_sm90_tile(tile, keeps), keeps);
    return std::max(shared_bytes(linear_logp_sm90_grad_tile(false), true),
                    std::max(kLinearLogpSm90HiddenTile.shared_bytes(),
                             kLinearLogpSm90WeightTile.shared_bytes()));
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
  if (call.pass == jit::Pass::bwd && call.target.num_elements() == 0) {
    Queue queue(kernel, call, driver);
    if (call.grad_weight.present() && !call.accumulates) queue.zero(call.grad_weight);
    if (call.grad_bias.present()) queue.zero(call.grad_bias);
    return;
  }
  const int x = type_code(call.hidden.dtype);
  const int limit = shared_limit_bytes(kernel.target);
  const CudaTile logits = linear_logp_cuda_logits_tile(x, limit);
  const CudaTile gradient = linear_logp_cuda_gradient_tile(x, limit);

  const LinearLogpSm90Tile sm90 = sm90_tile(kernel, call.pass);
  CudaLoop loop{logits.rows};
  if (linear_logp_uses_sm90_loop(x, kernel.target)) {
    loop = {sm90.rows_of_cluster(), true, sm90.dynamic};
  }

  Arena sizes(nullptr);
  plan_linear_logp_cuda(sizes, call, loop, settings.workspace_bytes);
  Arena memory(sizes.bytes() == 0 ? nullptr : call.workspace->allocate(sizes.bytes()));
  CudaPlan plan = plan_linear_logp_cuda(memory, call, loop, settings.workspace_bytes);
  plan.args.error = &error;
  plan.args.op = "linear_logp";

  Queue queue(kernel, call, driver);
  if (call.parts.present()) {
    queue.pack(k_fwd_pack, plan.row_copies());
    queue.step(k_fwd_join, ceil_div(plan.args.num_rows, 256), 256, plan.args);
  } else if (call.pass == jit::Pass::fwd) {
    launch_fwd(
        queue, plan,
        loop.is_sm90
            ? main_step_sm90(driver, call, plan, sm90, kernel.constants[k_linear_logp_keep] != 0,
                             settings.max_sms)
            : MainStep{logits.rows, logits.threads(), logits.shared_bytes(plan.element_bytes)});
  } else {
    launch_bwd(queue, plan,
               loop.is_sm90 ? grad_steps_sm90(driver, call, plan, sm90, settings.max_sms)
                            : grad_steps(logits, gradient, plan.element_bytes));
  }
}

}  // namespace rlk
