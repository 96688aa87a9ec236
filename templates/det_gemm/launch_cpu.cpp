// SPDX-License-Identifier: Apache-2.0
// The launch sequence of kernel_cpu.cpp. Strips and items are chosen here, for cache and threads
// alone: results do not depend on them.
#include "templates/common/cpu_steps.hpp"
#include "templates/common/logp/host.hpp"
#include "templates/det_gemm/cpu_args.h"
#include "templates/det_gemm/op.hpp"

#include <algorithm>
#include <cstring>
#include <vector>

namespace rlk {
namespace {

using templates::AlignedArray;
using templates::run_items_by_worker;

constexpr Int64 k_packed_floats = Int64{8} << 20;  // of a strip
constexpr Int64 k_item_rows = 1152;                // of sums that stay in the second-level cache

// A matrix whose leading axes have one stride, in place or in memory of its own.
struct Lines {
  const void* data;
  Int64 lead_stride, last_stride;
  std::vector<std::byte> copy;
};

Lines lines_of(const DetGemmOperand& operand) {
  const Tensor& tensor = *operand.tensor;
  Lines lines{tensor.data, operand.lead_stride.value_or(0), operand.last_stride, {}};
  if (operand.lead_stride) return lines;
  const std::size_t bytes = size_bytes(tensor.dtype);
  lines.copy.resize(static_cast<std::size_t>(operand.lead * operand.last) * bytes);
  auto* to = lines.copy.data();
  for_each_offset(tensor.dims(), tensor.steps(), [&](std::int64_t offset) {
    std::memcpy(to, static_cast<const std::byte*>(tensor.data) + offset * std::int64_t(bytes),
                bytes);
    to += bytes;
  });
  lines.data = lines.copy.data();
  lines.lead_stride = operand.last;
  lines.last_stride = 1;
  return lines;
}

// Strips of like size in whole tiles, at most `most` rows.
Int64 strip_rows(Int64 rows, Int64 most, Int64 tile_rows) {
  const Int64 strips = ceil_div(rows, std::max(most / tile_rows * tile_rows, tile_rows));
  return round_up(ceil_div(rows, strips), tile_rows);
}

// Items of main: large, since each packs its part of b, and several for each thread. Few threads
// get the same number of rows each, so that none waits for the last.
void set_items(DetGemmCpuArgs& args, Int64 strip, Int64 panels, Int64 tile_rows, int num_workers) {
  constexpr Int64 k_most_panels = 4, k_few_workers = 4, k_least_rows = 192, k_few_rows = 48;
  Int64 groups = ceil_div(strip, k_item_rows);
  args.panels_per_item = std::min(panels, k_most_panels);
  if (num_workers <= k_few_workers && strip >= k_least_rows * num_workers) {
    groups = round_up(groups, num_workers);
  } else {
    const Int64 wanted = Int64{4} * num_workers;
    if (ceil_div(panels, k_most_panels) * groups < wanted) args.panels_per_item = 1;
    const Int64 items = ceil_div(panels, args.panels_per_item);
    groups = std::max(groups, std::min(ceil_div(wanted, items), ceil_div(strip, k_few_rows)));
  }
  args.rows_per_item = round_up(ceil_div(strip, groups), tile_rows);
}

DetGemmCpuArgs args_of(const DetGemmCall& call, const DetGemmProduct& product, const Lines& a,
                       const Lines& b) {
  DetGemmCpuArgs args{};
  args.num_rows = product.rows();
  args.num_cols = product.cols();
  args.num_terms = product.terms();
  args.type = type_code(call.b.dtype);
  args.a = a.data;
  args.a_row_stride = product.a.lead_is_lanes ? a.lead_stride : a.last_stride;
  args.a_term_stride = product.a.lead_is_lanes ? a.last_stride : a.lead_stride;
  args.b = b.data;
  args.b_term_stride = b.lead_stride;
  args.b_col_stride = b.last_stride;
  if (call.bias.present()) {
    args.bias = call.bias.data;
    args.bias_stride = call.bias.strides[0];
    args.bias_type = type_code(call.bias.dtype);
  }
  args.out = call.out.data;
  args.out_type = type_code(call.out.dtype);
  args.accumulates = call.accumulates;
  return args;
}

}  // namespace

void launch_det_gemm_cpu(const LoadedKernel& kernel, const DetGemmCall& call) {
  const DetGemmProduct product = det_gemm_product(call);
  if (product.rows() == 0) return;
  if (product.terms() == 0) {  // tokens of a batch that has none
    if (!call.accumulates) zero(call.out);
    return;
  }
  const Lines a = call.a.present() ? lines_of(product.a) : Lines{};
  const Lines b = lines_of(product.b);
  DetGemmCpuArgs args = args_of(call, product, a, b);
  const DetGemmCpuTile tile = det_gemm_cpu_tile(vector_lanes(kernel.target));
  const Int64 panel = tile.panel(), panels = ceil_div(args.num_cols, panel);
  const int num_workers = runtime::ThreadPool::instance().num_threads();
  const auto pack = reinterpret_cast<DetGemmCpuStep>(kernel.entries[0]);
  const auto main = reinterpret_cast<DetGemmCpuStep>(kernel.entries[1]);

  const Int64 blocks = ceil_div(args.num_terms, tile.block);
  const Int64 strip = strip_rows(args.num_rows, k_packed_floats / args.num_terms, tile.tile_rows);
  set_items(args, strip, panels, tile.tile_rows, num_workers);
  const AlignedArray<float> packed(strip * blocks * tile.block);
  args.packed_a = packed.get();
  const Int64 scratch_floats =
      round_up(det_gemm_cpu_scratch_floats(tile, args.rows_per_item, args.panels_per_item), 16);
  const AlignedArray<float> scratch(scratch_floats * num_workers);
  for (args.first_row = 0; args.first_row < args.num_rows; args.first_row += strip) {
    args.strip_rows = std::min(strip, args.num_rows - args.first_row);
    args.padded_rows = round_up(args.strip_rows, tile.tile_rows);
    const auto run = [&](DetGemmCpuStep step, Int64 items, Int64 item_cost) {
      run_items_by_worker(items, item_cost, num_workers, [&](Int64 begin, Int64 end, int worker) {
        step(&args, begin, end, scratch.get() + worker * scratch_floats);
      });
    };
    run(pack, ceil_div(args.strip_rows, tile.pack_rows) * blocks, tile.pack_rows * tile.block);
    const Int64 groups = ceil_div(args.strip_rows, args.rows_per_item);
    run(main, ceil_div(panels, args.panels_per_item) * groups,
        std::min(args.rows_per_item, args.strip_rows) * args.panels_per_item * panel *
            args.num_terms);
  }
}

}  // namespace rlk
