// SPDX-License-Identifier: Apache-2.0
// Decides which operands are copied, how many rows a strip and columns a wave has.
#include "templates/linear_logp/cuda_plan.hpp"

#include <algorithm>
#include <bit>
#include <optional>
#include <utility>

namespace rlk {
namespace {

constexpr Int64 k_partial_bytes = Int64{56} << 20;  // of a forward's strip, at most
// Of the sums of a backward's strip where exponentials were kept, which took the memory.
constexpr Int64 k_strip_bytes = Int64{64} << 20;
constexpr Int64 k_few_rows = 1024;    // of a backward's strip, at least: they fill a card
constexpr Int64 k_least_leaves = 24;  // of a wave, so that sums between waves cost little

class Planner {
 public:
  Planner(Arena& arena, const LinearLogpCall& call, const CudaLoop& loop)
      : arena_(arena), call_(call), loop_(loop), compacts_(compacts(call, loop)) {
    plan_.element_bytes = static_cast<int>(size_bytes(call.hidden.dtype));
    unit_ = 16 / plan_.element_bytes;
    args().vocab = call.weight.shape[0];
    args().dim = call.weight.shape[1];
    plan_.copies.set_rows(arena, call, args());
  }

  CudaPlan join() {
    plan_.num_row_copies = plan_.copies.size();
    return plan_;
  }

  CudaPlan forward(Int64 workspace_bytes) {
    rows();
    operands();
    if (args().num_rows == 0) return plan_;
    const Int64 leaves = args().leaves().count();
    const bool stats = call_.needs_stats();
    const Int64 partial_bytes = 8 + (call_.entropy.present() ? 4 : 0) + (stats ? 12 : 0);
    const Int64 strip =
        strip_rows(std::min(k_partial_bytes, workspace_bytes) / (leaves * partial_bytes));
    args().strip_rows = strip;
    args().partial_max = arena_.take<float>(leaves * strip);
    args().partial_sum = arena_.take<float>(leaves * strip);
    if (call_.entropy.present()) args().partial_moment = arena_.take<float>(leaves * strip);
    if (stats) {
      args().partial_stats = {arena_.take<float>(leaves * strip),
                              arena_.take<float>(leaves * strip), arena_.take<int>(leaves * strip)};
    }
    args().target_logit = arena_.take<float>(strip);
    keep();
    if (loop_.is_dynamic) {
      args().next_tile = arena_.take<unsigned>(ceil_div(args().num_rows, strip));
    }
    return plan_;
  }

  CudaPlan backward(Int64 workspace_bytes) {
    rows();
    operands();
    gradients();
    chunk();
    const Int64 rows = std::max<Int64>(args().num_rows, 1);
    args().row_grad = arena_.take<LinearLogpRowGrad>(rows);
    args().row_shift = arena_.take<int>(rows);
    args().call_shift = arena_.take<int>(1);
    if (call_.hidden.dtype == DType::f16 && args().grad_weight != nullptr) {
      const Int64 pitch = round_up(args().dim, unit_);
      args().hidden_shifted = arena_.take_bytes(rows * pitch * plan_.element_bytes);
      args().hidden_shifted_pitch = pitch;
    }
    waves(rows, workspace_bytes);
    plan_.num_waves = static_cast<int>(ceil_div(num_segments(), plan_.wave_segments) *
                                       ceil_div(num_leaves(), plan_.wave_leaves));
    if (loop_.is_dynamic) args().next_tile = arena_.take<unsigned>(plan_.num_waves);
    return plan_;
  }

 private:
  // Whether active rows are listed first: in a backward in any case, as upstream gradients may be
  // 0. A forward of few rows reads all of the weight in any case, so it costs the same without.
  static bool compacts(const LinearLogpCall& call, const CudaLoop& loop) {
    if (call.pass == jit::Pass::bwd) return true;
    return (call.mask.present() || call.ignore_index) &&
           call.target.num_elements() > (loop.is_sm90 ? 256 : loop.rows);
  }

  // Strips of like size and at most `most` rows: whole groups of tiles where one fits.
  Int64 strip_rows(Int64 most) const {
    const Int64 rows = plan_.args.num_rows, tile = loop_.rows;
    most = std::max(most / tile * tile, tile);
    if (rows <= most) return round_up(rows, tile);
    const Int64 group =
        tile * linear_logp_group_tiles(loop_.rows, args_dim() * plan_.element_bytes);
    const Int64 unit = group <= most ? group : tile;
    const Int64 num_strips = ceil_div(rows, most / unit * unit);
    return round_up(ceil_div(rows, num_strips), unit);
  }

  LinearLogpCudaArgs& args() { return plan_.args; }

  void rows() {
    if (call_.bias.present()) {
      args().bias = {call_.bias.data, call_.bias.strides[0], type_code(call_.bias.dtype)};
    }
    plan_.num_row_copies = plan_.copies.size();
    if (!compacts_) return;
    args().rows = reinterpret_cast<long long*>(arena_.take<Int64>(args().num_rows + 1));
    args().num_active = args().rows + args().num_rows;
  }

  // Rows contiguous, at addresses of whole 16 bytes, of whole 16 bytes.
  bool is_aligned(const Tensor& matrix, Int64 num_rows, Int64 row_stride) const {
    // A tensor map has no stride backwards.
    if (loop_.is_sm90 && num_rows > 1 && row_stride < 0) return false;
    return matrix.strides[matrix.rank - 1] == 1 && row_stride % unit_ == 0 &&
           args_dim() % unit_ == 0 && reinterpret_cast<std::uintptr_t>(matrix.data) % 16 == 0;
  }
  Int64 args_dim() const { return plan_.args.dim; }

  void operands() {
    const Tensor &hidden = call_.hidden, &weight = call_.weight;
    const Int64 pitch = round_up(args().dim, unit_);
    const auto leading = static_cast<std::size_t>(hidden.rank - 1);
    const auto stride = flat_stride(hidden.dims().first(leading), hidden.steps().first(leading));
    const Int64 num_rows = args().num_rows;
    // A chunk's rows lie behind those that wait.
    void* const own = call_.chunk != nullptr ? after_carried(call_.chunk->hidden) : nullptr;
    const bool in_place = own == nullptr && stride && is_aligned(hidden, num_rows, *stride);
    // The backward's products and tensor maps read hidden's rows as they lie, so active ones are
    // gathered.
    const bool gathers = compacts_ && (call_.pass == jit::Pass::bwd || loop_.is_sm90);
    if (in_place) {
      args().hidden = hidden.data;
      args().hidden_pitch = *stride;
    }
    if (!in_place || gathers) {
      const void* const copied = plan_.copies.add(arena_, hidden, hidden.rank - 1, args().dim,
                                                  hidden.strides[hidden.rank - 1], pitch, own);
      CudaCopy& made = plan_.copies.last();
      made.rows = args().rows;
      made.num_active = args().num_active;
      plan_.gathered = {copied, num_rows, args().dim, pitch};
      if (in_place) {
        made.skipped_if_all = 1;
        args().gathered = copied;
        args().gathered_pitch = pitch;
      } else {
        args().hidden = copied;
        args().hidden_pitch = pitch;
        args().hidden_packed = 1;
      }
    }
    plan_.hidden = {args().hidden, num_rows, args().dim, args().hidden_pitch};
    if (in_place && !gathers) plan_.gathered = plan_.hidden;
    const Int64 weight_stride = args().vocab == 1 ? 0 : weight.strides[0];
    if (is_aligned(weight, args().vocab, weight_stride)) {
      args().weight = weight.data;
      args().weight_pitch = weight_stride;
    } else {
      args().weight = plan_.copies.add(arena_, weight, 1, args().dim, weight.strides[1], pitch);
      args().weight_pitch = pitch;
    }
  }

  // The first row of a chunk's own in memory of its and of those that wait.
  static void* after_carried(const Tensor& memory) {
    return static_cast<std::byte*>(memory.data) +
           kLinearLogpCarriedRows * memory.shape[1] * static_cast<Int64>(size_bytes(memory.dtype));
  }

  void chunk() {
    args().unless_one = static_cast<const float*>(call_.unless_one.data);
    if (call_.chunk == nullptr) return;
    const LinearLogpChunk& given = *call_.chunk;
    plan_.carried_rows = kLinearLogpCarriedRows;
    LinearLogpCudaChunk& chunk = args().chunk;
    chunk.terms = arena_.take<LinearLogpTerms>(1);
    chunk.state = static_cast<long long*>(given.state.data);
    chunk.is_first = given.is_first ? 1 : 0;
    chunk.is_last = given.is_last ? 1 : 0;
    chunk.weight_sums = static_cast<const float*>(given.weight_sums.data);
    chunk.bias_sums = static_cast<float*>(given.bias_sums.data);
    args().gathered = plan_.gathered.data;
    args().gathered_pitch = plan_.gathered.pitch;
  }

  void gradients() {
    if (call_.grad_hidden.present()) {
      args().grad_hidden = call_.grad_hidden.data;
      args().grad_hidden_type = type_code(call_.grad_hidden.dtype);
    }
    if (call_.grad_weight.present()) {
      args().grad_weight = call_.grad_weight.data;
      args().grad_weight_type = type_code(call_.grad_weight.dtype);
      args().adds_weight = call_.accumulates ? 1 : 0;
      args().grad_weight_row_stride = args().dim;
    }
    if (call_.grad_bias.present()) {
      args().grad_bias = call_.grad_bias.data;
      args().grad_bias_stride = 1;
    }
  }

  void keep() {
    if (!call_.kept.present()) return;
    args().kept =
        linear_logp_kept(args().leaves(), static_cast<int>(linear_logp_kept_segments(call_)));
    args().kept.data = call_.kept.data;
  }

  // Bytes of what a wave of whole segments takes: dZ, and the sums of grad_hidden of earlier waves.
  struct WaveBytes {
    Int64 grad_logits, sums, strip_row;
    Int64 all(Int64 strip_rows) const { return grad_logits + sums + strip_row * strip_rows; }
  };
  WaveBytes wave_bytes(Int64 rows, int segments) {
    segments = std::min(segments, num_segments());
    const Int64 row_sums =
        args().grad_hidden != nullptr ? args().sum_pitch * Int64{sizeof(float)} : 0;
    return {rows * segments * args().wave.width * plan_.element_bytes,
            num_levels(segments) * rows * row_sums, segments * row_sums};
  }

  // Waves of 8, 4, 2 or 1 segments, as many as the budget holds, of which dZ may take half; where
  // it does not hold one, waves of some of a segment's leaves. Where exponentials were kept, as
  // many as these have; where they may be written over, all waves have their memory.
  void waves(Int64 rows, Int64 budget) {
    keep();
    const bool is_in_place = args().kept.data != nullptr && call_.may_overwrite_kept;
    LinearLogpWave& wave = args().wave;
    args().sum_pitch = round_up(args().dim, 4);
    wave.num_leaves = num_leaves();
    wave.width = wave.step = linear_logp_wave_width(args().leaves(), wave);
    int segments = args().kept.data != nullptr ? args().kept.num_segments : kLogpSegments;
    const auto fits = [&](int count) {
      const WaveBytes bytes = wave_bytes(rows, count);
      return bytes.grad_logits <= budget / 2 && bytes.all(std::min(rows, k_few_rows)) <= budget;
    };
    while (!is_in_place && segments > 1 && !fits(segments)) {
      segments = static_cast<int>(std::bit_ceil(static_cast<unsigned>(segments)) / 2);
    }
    plan_.wave_segments = std::min(segments, num_segments());
    const WaveBytes bytes = wave_bytes(rows, plan_.wave_segments);
    if (!is_in_place && !fits(segments)) {
      const Int64 leaf_bytes = rows * kLogpLeaf * plan_.element_bytes;
      const Int64 most =
          std::max((budget - bytes.all(rows) + bytes.grad_logits) / leaf_bytes, k_least_leaves);
      wave.num_leaves = static_cast<int>(ceil_div(num_leaves(), ceil_div(num_leaves(), most)));
      wave.width = wave.step = linear_logp_wave_width(args().leaves(), wave);
    }
    plan_.wave_leaves = wave.num_leaves;
    args().strip_rows = rows;  // sums over a piece of a segment wait for the next one, of all rows
    if (wave.num_leaves == num_leaves()) {
      args().strip_rows =
          strip_of_sums(rows, is_in_place ? k_strip_bytes : budget - bytes.all(0), bytes.strip_row);
    }
    if (is_in_place) {
      wave.step = args().kept.step;
      wave.pitch = args().kept.pitch;
      wave.grad_logits = args().kept.data;
    } else {
      wave.pitch = Int64{plan_.wave_segments} * wave.width;
      wave.grad_logits = arena_.take_bytes(rows * wave.pitch * plan_.element_bytes);
    }
    if (args().grad_hidden == nullptr) return;
    args().segment_sums =
        arena_.take<float>(plan_.wave_segments * args().strip_rows * args().sum_pitch);
    if (const Int64 levels = num_levels(plan_.wave_segments); levels > 0) {
      args().wave_sums = arena_.take<float>(levels * rows * args().sum_pitch);
    }
  }
  // Rows whose sums lie in memory at once: all, or strips of like size, of whole tiles.
  static Int64 strip_of_sums(Int64 rows, Int64 bytes, Int64 row_bytes) {
    if (row_bytes == 0) return rows;
    const Int64 most = std::max(bytes / row_bytes, k_few_rows);
    if (rows <= most) return rows;
    const Int64 strips = ceil_div(rows, most / kCopyTileRows * kCopyTileRows);
    return round_up(ceil_div(rows, strips), kCopyTileRows);
  }
  int num_leaves() const { return plan_.args.leaves().of_segment(); }
  int num_segments() const { return plan_.args.leaves().count() / num_leaves(); }
  // Sums that wait at once for those of later waves.
  Int64 num_levels(int segments) const {
    const Int64 waves = ceil_div(num_segments(), segments);
    Int64 levels = 0;
    while ((Int64{1} << levels) < waves) ++levels;
    return levels;
  }

  Arena& arena_;
  const LinearLogpCall& call_;
  const CudaLoop& loop_;
  // Pointers cannot tell: they are null while bytes are counted.
  const bool compacts_;
  Int64 unit_ = 8;  // elements in 16 bytes
  CudaPlan plan_;
};

}  // namespace

int linear_logp_group_tiles(int tile_rows, Int64 row_bytes) {
  return static_cast<int>(std::max<Int64>(1, (Int64{16} << 20) / (tile_rows * row_bytes)));
}

CudaPlan plan_linear_logp_cuda(Arena& arena, const LinearLogpCall& call, const CudaLoop& loop,
                               Int64 workspace_bytes) {
  Planner planner(arena, call, loop);
  if (call.parts.present()) return planner.join();
  if (call.pass == jit::Pass::fwd) return planner.forward(workspace_bytes);
  return planner.backward(workspace_bytes);
}

}  // namespace rlk
