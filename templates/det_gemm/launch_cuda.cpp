// SPDX-License-Identifier: Apache-2.0
// The launch sequence of kernel.cuh. Copies, tiles and their order are chosen here: results do not
// depend on them.
#include "runtime/cuda/cuda_loader.hpp"
#include "runtime/cuda/launch.hpp"
#include "runtime/cuda/tensor_map.hpp"
#include "templates/common/cuda_copies.hpp"
#include "templates/det_gemm/cuda_args.h"
#include "templates/det_gemm/op.hpp"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <string>

namespace rlk {
namespace {

using namespace runtime::cuda;

// In the order of the entries below; of a product, k_main + 2 * a's layout + b's.
enum Step { k_pack, k_main };
constexpr const char* k_entries[] = {"rlk_det_gemm_fwd_pack", "rlk_det_gemm_fwd_main_kk",
                                     "rlk_det_gemm_fwd_main_kl", "rlk_det_gemm_fwd_main_lk",
                                     "rlk_det_gemm_fwd_main_ll"};

// Rows of a group of tiles: what it reads of a stays in the L2 cache.
constexpr int k_group_rows = 2048;

struct Plan {
  DetGemmCudaArgs args{};
  CudaCopies copies;
  void* ones = nullptr;  // in place of a; [num_terms] and what fills up 16 bytes
  // Of the step main.
  int threads = 0, shared_bytes = 0, cluster = 1;
  Int64 blocks = 0;
};

// What a card and a kernel say of a call.
struct Machine {
  DetGemmLoop loop;
  int tile;  // value of kTile
  int shared_limit, num_sms;
};

class Planner {
 public:
  Planner(Arena& arena, const DetGemmCall& call, const Machine& machine)
      : arena_(arena), call_(call), machine_(machine), product_(det_gemm_product(call)) {}

  Plan plan() {
    auto& args = plan_.args;
    args.num_rows = product_.rows();
    args.num_cols = product_.cols();
    args.num_terms = product_.terms();
    args.a = call_.a.present() ? matrix(product_.a) : ones();
    args.b = matrix(product_.b);
    if (call_.bias.present()) {
      args.bias = call_.bias.data;
      args.bias_stride = call_.bias.strides[0];
      args.bias_type = type_code(call_.bias.dtype);
    }
    args.out = call_.out.data;
    args.out_kind = static_cast<int>(det_gemm_out(call_));
    machine_.loop == kDetGemmSm90 ? tiles_sm90() : tiles();
    return plan_;
  }

 private:
  Int64 element_bytes() const { return static_cast<Int64>(size_bytes(call_.b.dtype)); }
  Int64 num_tiles(int rows, int cols) const {
    return ceil_div(product_.rows(), rows) * ceil_div(product_.cols(), cols);
  }

  // A block a tile.
  void tiles() {
    const CudaTile tile = det_gemm_cuda_tile(machine_.loop, machine_.tile, machine_.shared_limit);
    plan_.args.group_tiles = std::max(1, k_group_rows / tile.rows);
    plan_.blocks = num_tiles(tile.rows, tile.cols);
    plan_.threads = tile.threads();
    plan_.shared_bytes = tile.shared_bytes(static_cast<int>(element_bytes()));
  }

  // As many blocks as run at once, which ask for more tiles where there are more.
  void tiles_sm90() {
    const DetGemmSm90Tile tile = det_gemm_sm90_tile(machine_.tile);
    const int cluster_rows = tile.rows * tile.cluster;
    plan_.args.group_tiles = std::max(1, k_group_rows / cluster_rows);
    const Int64 all = num_tiles(cluster_rows, tile.cols) * tile.cluster;
    const int most_clusters = std::max(machine_.num_sms / tile.cluster, 1);
    plan_.blocks = std::min<Int64>(all, most_clusters * tile.cluster);
    plan_.cluster = tile.cluster;
    plan_.threads = tile.threads();
    plan_.shared_bytes = tile.shared_bytes();
    // Few rows need no whole box: zeros would be written for the others.
    const bool is_short = plan_.args.a.along_lanes == 0 && product_.rows() < tile.rows;
    plan_.args.a_box_rows = is_short ? static_cast<int>(round_up(product_.rows(), 8)) : tile.rows;
    if (tile.dynamic && all > plan_.blocks) plan_.args.next_tile = arena_.take<unsigned>(1);
  }

  Int64 unit() const { return 16 / element_bytes(); }

  DetGemmMatrix ones() {
    const Int64 count = round_up(product_.terms(), unit());
    plan_.ones = arena_.take_bytes(count * element_bytes());
    return {plan_.ones, count, 0};
  }

  // In place where the lines that memory runs along are aligned and made of whole 16 bytes.
  DetGemmMatrix matrix(const DetGemmOperand& operand) {
    const Tensor& tensor = *operand.tensor;
    const bool is_transposed = operand.is_transposed();
    const Int64 length = is_transposed ? operand.lead : operand.last;
    const Int64 count = is_transposed ? operand.last : operand.lead;
    const int along_lanes = operand.runs_along_lanes();
    Int64 pitch = is_transposed ? operand.last_stride : operand.lead_stride.value_or(0);
    if (count == 1) pitch = round_up(length, unit());
    // A tensor map has its own end of a line, and no stride that is not above 0.
    const bool fits = machine_.loop == kDetGemmSm90 ? pitch > 0 : length % unit() == 0;
    const bool is_in_place = operand.lead_stride && (is_transposed || operand.last_stride == 1) &&
                             pitch % unit() == 0 && fits &&
                             reinterpret_cast<std::uintptr_t>(tensor.data) % 16 == 0;
    if (is_in_place) return {tensor.data, pitch, along_lanes};
    pitch = round_up(length, unit());
    if (!is_transposed) {
      return {plan_.copies.add(arena_, tensor, tensor.rank - 1, length, operand.last_stride, pitch),
              pitch, along_lanes};
    }
    Tensor lines = tensor;
    lines.rank = 1;
    lines.shape[0] = count;
    lines.strides[0] = operand.last_stride;
    return {plan_.copies.add(arena_, lines, 1, length, 1, pitch), pitch, along_lanes};
  }

  Arena& arena_;
  const DetGemmCall& call_;
  const Machine& machine_;
  const DetGemmProduct product_;
  Plan plan_;
};

// Queues steps of one kernel on one stream.
class Queue {
 public:
  Queue(const LoadedKernel& kernel, const DetGemmCall& call)
      : kernel_(kernel),
        driver_(entry(kernel, 0).driver()),
        device_(call.device.index),
        stream_(static_cast<Stream>(call.stream)) {}

  Driver& driver() const { return driver_; }

  template <class Args>
  void step(int step, Int64 blocks, int threads, const Args& args, int shared_bytes = 0,
            const DetGemmMaps* maps = nullptr, int cluster = 1) {
    void* arguments[] = {const_cast<Args*>(&args), const_cast<DetGemmMaps*>(maps)};
    entry(kernel_, step)
        .launch(device_, stream_,
                {{static_cast<unsigned>(blocks)},
                 {static_cast<unsigned>(threads)},
                 static_cast<unsigned>(shared_bytes),
                 static_cast<unsigned>(cluster)},
                arguments);
  }
  void zero(void* data, std::size_t bytes) {
    const DeviceGuard guard(driver_, device_);
    driver_.check(
        driver_.table().memset_d8_async(reinterpret_cast<std::uint64_t>(data), 0, bytes, stream_),
        "cuMemsetD8Async");
  }
  void fill_with_ones(void* data, DType dtype, std::size_t count) {
    const DeviceGuard guard(driver_, device_);
    const auto address = reinterpret_cast<std::uint64_t>(data);
    if (dtype == DType::f32) {
      driver_.check(driver_.table().memset_d32_async(address, 0x3f800000, count, stream_),
                    "cuMemsetD32Async");
    } else {
      const std::uint16_t one = dtype == DType::bf16 ? 0x3f80 : 0x3c00;
      driver_.check(driver_.table().memset_d16_async(address, one, count, stream_),
                    "cuMemsetD16Async");
    }
  }

 private:
  const LoadedKernel& kernel_;
  Driver& driver_;
  DeviceOrdinal device_;
  Stream stream_;
};

// parts: of a tile's boxes, each of which a block of a cluster copies.
TensorMap map_of(Driver& driver, DeviceOrdinal device, DType dtype, const DetGemmMatrix& matrix,
                 Int64 lanes, Int64 terms, int tile_lanes, int parts = 1) {
  if (lanes > std::numeric_limits<int>::max()) {  // a tensor map's coordinates are ints
    throw Unsupported(
        Fault{"det_gemm", "a", "fewer than 2^31 rows on sm_90a", std::to_string(lanes)});
  }
  TensorMap map;
  const bool along_lanes = matrix.along_lanes != 0;
  const MatrixView view{matrix.data, along_lanes ? terms : lanes, along_lanes ? lanes : terms,
                        matrix.pitch};
  make_tensor_map(&map, driver, device, dtype, view, (along_lanes ? 64 : tile_lanes) / parts);
  return map;
}

DetGemmMaps maps_of(Driver& driver, DeviceOrdinal device, DType dtype, const DetGemmCudaArgs& args,
                    int tile) {
  const DetGemmSm90Tile shape = det_gemm_sm90_tile(tile);
  return {map_of(driver, device, dtype, args.a, args.num_rows, args.num_terms, args.a_box_rows),
          map_of(driver, device, dtype, args.b, args.num_cols, args.num_terms, shape.cols,
                 shape.cluster)};
}

}  // namespace

std::span<const char* const> det_gemm_cuda_entries() { return k_entries; }

int det_gemm_cuda_shared_bytes(int x, Target target, int tile) {
  const DetGemmLoop loop = det_gemm_loop(x, target);
  if (loop == kDetGemmSm90) return det_gemm_sm90_tile(tile).shared_bytes();
  return det_gemm_cuda_tile(loop, tile, shared_limit_bytes(target))
      .shared_bytes(x == kFloat32 ? 4 : 2);
}

void launch_det_gemm_cuda(const LoadedKernel& kernel, const DetGemmCall& call,
                          const jit::LaunchSettings& settings) {
  Queue queue(kernel, call);
  const DetGemmProduct product = det_gemm_product(call);
  if (product.rows() == 0) return;
  if (product.terms() == 0) {  // tokens of a batch that has none
    const auto count = static_cast<std::size_t>(call.out.num_elements());
    if (!call.accumulates) queue.zero(call.out.data, count * size_bytes(call.out.dtype));
    return;
  }
  const DType dtype = call.b.dtype;
  const Machine machine{det_gemm_loop(type_code(dtype), kernel.target),
                        static_cast<int>(kernel.constants[k_det_gemm_tile]),
                        shared_limit_bytes(kernel.target),
                        queue.driver().device(call.device.index).sms_within(settings.max_sms)};
  Arena sizes(nullptr);
  Planner(sizes, call, machine).plan();
  Arena memory(sizes.bytes() == 0 ? nullptr : call.workspace->allocate(sizes.bytes()));
  const Plan plan = Planner(memory, call, machine).plan();
  const auto& args = plan.args;

  constexpr Int64 k_most_copy_blocks = 4096;
  for (const CudaCopy& copy : plan.copies.all()) {
    queue.step(k_pack, std::min<Int64>(copy.num_rows, k_most_copy_blocks), 256, copy);
  }
  if (plan.ones != nullptr) {
    queue.fill_with_ones(plan.ones, dtype, static_cast<std::size_t>(args.a.pitch));
  }
  if (args.next_tile != nullptr) queue.zero(args.next_tile, sizeof(unsigned));
  DetGemmMaps maps;
  if (machine.loop == kDetGemmSm90)
    maps = maps_of(queue.driver(), call.device.index, dtype, args, machine.tile);
  queue.step(k_main + 2 * args.a.along_lanes + args.b.along_lanes, plan.blocks, plan.threads, args,
             plan.shared_bytes, &maps, plan.cluster);
}

}  // namespace rlk
