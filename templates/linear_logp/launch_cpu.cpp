// SPDX-License-Identifier: Apache-2.0
// Strip and wave sizes are chosen here, for cache and memory alone: results do not depend on them.
#include "templates/linear_logp/launch_cpu.hpp"

#include "templates/common/cpu_steps.hpp"
#include "templates/common/logp/host.hpp"

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace rlk {
namespace {

using runtime::ThreadPool;
using templates::AlignedArray;
using templates::DefaultFloatMode;

// Runs steps over the pool; below k_inline_cost multiplications a step stays on this thread.
class Runner {
 public:
  explicit Runner(ThreadPool& pool) : pool_(pool), num_workers_(pool.num_threads()) {}

  int num_workers() const { return num_workers_; }

  void run(LinearLogpCpuStep step, const LinearLogpCpuArgs& args, Int64 items, Int64 item_cost,
           float* scratch = nullptr, Int64 scratch_floats = 0) {
    if (items <= 0) return;
    if (items * item_cost <= k_inline_cost || num_workers_ == 1) {
      const DefaultFloatMode mode;
      step(&args, 0, items, scratch);
      return;
    }
    const Int64 grain = std::max<Int64>(1, k_chunk_cost / std::max<Int64>(item_cost, 1));
    const auto body = [&](std::int64_t begin, std::int64_t end, int worker) {
      const DefaultFloatMode mode;
      step(&args, begin, end, scratch + worker * scratch_floats);
    };
    pool_.run(items, grain, body, num_workers_);
  }

 private:
  static constexpr Int64 k_inline_cost = 200'000;
  static constexpr Int64 k_chunk_cost = 100'000;
  ThreadPool& pool_;
  int num_workers_;
};

struct LaneArrays {
  LaneArrays(LinearLogpCpuArgs& args, Int64 padded_rows, bool backward)
      : target(padded_rows), values(padded_rows * (backward ? 7 : 2)) {
    args.lane_target = target.get();
    args.lane_scale = values.get();
    if (backward) {
      args.lane_max = args.lane_scale + padded_rows;
      args.lane_log_sum = args.lane_max + padded_rows;
      args.lane_grad_target = args.lane_log_sum + padded_rows;
      args.lane_grad_rest = args.lane_grad_target + padded_rows;
      args.lane_grad_entropy = args.lane_grad_rest + padded_rows;
      args.lane_entropy = args.lane_grad_entropy + padded_rows;
    } else {
      args.lane_target_logit = args.lane_scale + padded_rows;
    }
  }
  AlignedArray<Int64> target;
  AlignedArray<float> values;
};

// Rows of a strip: as many whole panels as the budget holds.
Int64 strip_rows(const LinearLogpCpuTile& tile, Int64 all_rows, Int64 most) {
  const Int64 panel = tile.panel();
  const Int64 strips = ceil_div(all_rows, std::max(panel, most / panel * panel));
  return round_up(ceil_div(all_rows, strips), panel);  // strips of like size
}

// Panels that one item of fwd_main or bwd_dz covers: enough to pay for reading the weights, few
// enough that every thread has several items.
Int64 panels_per_item(const LinearLogpCpuTile& tile, Int64 panels, Int64 leaves, int num_workers) {
  constexpr Int64 k_item_rows = 576;
  Int64 groups = ceil_div(panels, k_item_rows / tile.panel());
  const Int64 wanted = ceil_div(4 * num_workers, leaves);
  if (num_workers > 1) groups = std::max(groups, std::min(wanted, panels));
  return ceil_div(panels, groups);
}

// Multiplications of an item of fwd_main or bwd_dz. A panel is computed as far as it holds rows.
Int64 leaf_cost(const LinearLogpCpuTile& tile, const LinearLogpCpuArgs& args) {
  const Int64 rows =
      std::min(args.panels_per_item * tile.panel(), round_up(args.num_rows, tile.vector_lanes));
  return std::min(tile.leaf, args.vocab) * rows * args.dim;
}

void set_strip(LinearLogpCpuArgs& args, const LinearLogpCpuTile& tile, Int64 first, Int64 rows) {
  args.first_row = first;
  args.num_rows = std::min(rows, args.all_rows - first);
  args.padded_rows = round_up(args.num_rows, tile.panel());
}

constexpr Int64 k_exp_cost = 8;  // of a logit's gradient, against a multiplication

// A wave of the backward, strip by strip, and the stores of what is summed over rows.
void run_wave(Runner& runner, const LinearLogpBwdSteps& steps, const LinearLogpCpuTile& tile,
              Int64 strip, LinearLogpCpuArgs& args) {
  const Int64 panel = tile.panel(), dim_panels = ceil_div(args.dim, panel);
  const Int64 leaves = ceil_div(args.wave_cols, tile.leaf);
  const bool is_kept = args.kept_wave >= 0;
  const bool has_bias = args.grad_bias != nullptr || args.bias_lanes != nullptr;
  if (args.goes_on) runner.run(steps.load_sums, args, leaves, tile.leaf * args.dim);
  if (args.all_rows > 0 && (args.grad_hidden || !is_kept)) {
    runner.run(steps.pack_weight, args, leaves, tile.leaf * args.dim);
  }
  for (Int64 first = 0; first < args.all_rows; first += strip) {
    set_strip(args, tile, first, strip);
    const Int64 panels = args.padded_rows / panel;
    const Int64 groups = ceil_div(panels, args.panels_per_item);
    // With one strip what the first wave packed is still there.
    if (args.wave_begin == 0 || strip < args.all_rows) {
      runner.run(steps.pack_hidden, args, panels, 2 * panel * args.dim);
    }
    const Int64 cost = leaf_cost(tile, args);
    runner.run(steps.dz, args, leaves * groups, is_kept ? cost / args.dim * k_exp_cost : cost);
    if (args.grad_hidden) {
      runner.run(steps.dh, args, dim_panels * panels, panel * panel * args.wave_cols);
    }
    if (args.grad_weight) {
      runner.run(steps.dw, args, dim_panels * leaves, panel * tile.leaf * args.num_rows);
    }
    if (has_bias) runner.run(steps.db, args, leaves, tile.leaf * args.num_rows);
  }
  if (args.grad_weight) runner.run(steps.store_dw, args, leaves, tile.leaf * args.dim);
  if (has_bias) runner.run(steps.store_db, args, leaves, tile.leaf * panel);
}

}  // namespace

void launch_linear_logp_fwd(const LinearLogpFwdSteps& steps, const LinearLogpCpuTile& tile,
                            const LinearLogpCpuOperands& operands, ThreadPool& pool) {
  if (operands.all_rows == 0) return;
  constexpr Int64 k_hidden_floats = 2 << 20;  // 8 MiB
  constexpr Int64 k_partial_floats = 1 << 20;
  Runner runner(pool);
  LinearLogpCpuArgs args{};
  static_cast<LinearLogpCpuOperands&>(args) = operands;
  const Int64 panel = tile.panel();
  const Int64 leaves = LogpLeaves<kLogpCpuLeaf>{args.vocab, args.shard.segment}.count();
  const bool has_entropy = args.entropy != nullptr, has_stats = args.stats.argmax != nullptr;
  const Int64 num_partials = 2 + (has_entropy ? 1 : 0) + (has_stats ? 3 : 0);
  const Int64 strip =
      strip_rows(tile, args.all_rows,
                 std::min(k_hidden_floats / args.dim, k_partial_floats / num_partials / leaves));
  args.panels_per_item = panels_per_item(tile, strip / panel, leaves, runner.num_workers());

  const LaneArrays lanes(args, strip, false);
  const AlignedArray<float> hidden(strip * args.dim);
  const AlignedArray<float> partials(num_partials * leaves * strip);
  const Int64 scratch_floats =
      round_up(linear_logp_cpu_scratch_floats(tile, args.panels_per_item), 16);
  const AlignedArray<float> scratch(scratch_floats * runner.num_workers());
  args.hidden_by_row = hidden.get();
  args.kept_rows = args.all_rows;
  set_partials(args, partials.get(), leaves * strip, has_entropy, has_stats);

  for (Int64 first = 0; first < args.all_rows; first += strip) {
    set_strip(args, tile, first, strip);
    const Int64 panels = args.padded_rows / panel;
    const Int64 groups = ceil_div(panels, args.panels_per_item);
    runner.run(steps.pack, args, panels, panel * args.dim);
    runner.run(steps.main, args, leaves * groups, leaf_cost(tile, args), scratch.get(),
               scratch_floats);
    runner.run(steps.merge, args, panels, leaves * panel * 8);
  }
}

void join_linear_logp_fwd(const LinearLogpFwdSteps& steps, const LinearLogpCpuTile& tile,
                          const LinearLogpCpuOperands& operands, ThreadPool& pool) {
  Runner runner(pool);
  LinearLogpCpuArgs args{};
  static_cast<LinearLogpCpuOperands&>(args) = operands;
  set_strip(args, tile, 0, args.all_rows);
  runner.run(steps.join, args, ceil_div(args.all_rows, tile.vector_lanes),
             args.shard.num_parts * tile.vector_lanes * 8);
}

void launch_linear_logp_bwd(const LinearLogpBwdSteps& steps, const LinearLogpCpuTile& tile,
                            const LinearLogpCpuOperands& operands, ThreadPool& pool) {
  constexpr Int64 k_strip_rows = 576;
  constexpr Int64 k_hidden_floats = 2 << 20;
  constexpr Int64 k_wave_floats = 4 << 20;
  const bool dh = operands.grad_hidden != nullptr;
  const bool dw = operands.grad_weight != nullptr;
  const bool db = operands.grad_bias != nullptr || operands.bias_lanes != nullptr;
  if (!dh && !dw && !db) return;
  Runner runner(pool);
  // Narrow waves stay in the cache of few threads; many threads need more items a step.
  const Int64 most_cols = (runner.num_workers() <= 8 ? 3 : 8) * tile.leaf;
  LinearLogpCpuArgs args{};
  static_cast<LinearLogpCpuOperands&>(args) = operands;
  const Int64 panel = tile.panel();
  const Int64 padded_dim = round_up(args.dim, panel);
  const Int64 strip = strip_rows(tile, std::max<Int64>(args.all_rows, 1),
                                 std::min(k_strip_rows, k_hidden_floats / args.dim));
  const LogpLeaves<kLogpCpuLeaf> leaves_of_vocab{args.vocab, args.shard.segment};
  const Int64 segment = leaves_of_vocab.segment();
  const Int64 num_segments = ceil_div(args.vocab, segment);
  const Int64 wave = std::min(
      round_up(segment, tile.leaf),
      std::clamp(k_wave_floats / padded_dim / tile.leaf * tile.leaf, tile.leaf, most_cols));
  args.padded_wave = wave;
  args.total_rows = round_up(args.all_rows, panel);
  args.panels_per_item =
      panels_per_item(tile, strip / panel, wave / tile.leaf, runner.num_workers());

  const LaneArrays lanes(args, strip, true);
  const Int64 num_kept = args.kept ? args.kept_segments : 0;
  const AlignedArray<float> hidden_by_row(num_kept < num_segments ? strip * args.dim : 0);
  const AlignedArray<float> hidden_by_col(dw ? strip * padded_dim : 0);
  const AlignedArray<float> weight(wave * padded_dim);
  const AlignedArray<float> grad_logits(strip * wave);
  // Before segment s there is a sum of whole subtrees for each bit that is set in s.
  const Int64 most_sums = std::bit_width(static_cast<std::uint64_t>(num_segments));
  const Int64 hidden_floats = args.total_rows * padded_dim;
  const AlignedArray<float> hidden_sum(dh ? most_sums * hidden_floats : 0);
  const AlignedArray<float> weight_sum(dw ? wave * padded_dim : 0);
  const AlignedArray<float> bias_sum(db ? wave * panel : 0);
  args.hidden_by_col = dw ? hidden_by_col.get() : nullptr;
  args.weight_wave = weight.get();
  args.grad_logits = grad_logits.get();
  args.grad_weight_sum = weight_sum.get();
  args.grad_bias_sum = bias_sum.get();
  if (args.all_rows == 0) {  // no step will write the sums
    if (dw) std::memset(weight_sum.get(), 0, static_cast<std::size_t>(wave * padded_dim) * 4);
    if (db) std::memset(bias_sum.get(), 0, static_cast<std::size_t>(wave * panel) * 4);
  }

  for (Int64 s = 0; s < num_segments; ++s) {
    const Int64 num_before = std::popcount(static_cast<std::uint64_t>(s));
    args.grad_hidden_sum = hidden_sum.get() + num_before * hidden_floats;
    args.segment_begin = s * segment;
    const Int64 end = std::min(args.segment_begin + segment, args.vocab);
    const bool is_kept = s < num_kept;
    // With one strip the hidden states that are packed for the first wave are those of all.
    const bool reads_none = strip < args.all_rows ? is_kept : num_kept == num_segments;
    args.hidden_by_row = reads_none ? nullptr : hidden_by_row.get();
    for (args.wave_begin = args.segment_begin; args.wave_begin < end; args.wave_begin += wave) {
      args.wave_cols = std::min(wave, end - args.wave_begin);
      args.kept_wave = is_kept ? s * args.kept_pitch + args.wave_begin - args.segment_begin : -1;
      run_wave(runner, steps, tile, strip, args);
    }
    args.num_folds =
        s + 1 == num_segments ? num_before : std::countr_one(static_cast<std::uint64_t>(s));
    if (dh && args.num_folds > 0) {
      runner.run(steps.fold_dh, args, hidden_floats / (panel * panel),
                 panel * panel * args.num_folds);
    }
  }
  if (dh) {
    args.grad_hidden_sum = hidden_sum.get();
    set_strip(args, tile, 0, args.all_rows);
    runner.run(steps.store_dh, args, args.total_rows / panel, panel * args.dim);
  }
}

}  // namespace rlk
