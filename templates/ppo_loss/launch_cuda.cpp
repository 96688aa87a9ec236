// SPDX-License-Identifier: Apache-2.0
// The launch sequence of ppo_loss's kernel.cuh. Grids and copies show nowhere in the results.
#include "runtime/cuda/cuda_loader.hpp"
#include "runtime/cuda/launch.hpp"
#include "templates/common/cuda_memory.hpp"
#include "templates/common/device_errors.hpp"
#include "templates/common/host_copy.hpp"
#include "templates/ppo_loss/op.hpp"

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>

namespace rlk {
namespace {

using namespace runtime::cuda;

enum Step { k_pack, k_count, k_weigh, k_slope, k_main, k_finish };

// Of the main step, as many as run at once.
constexpr Int64 k_blocks_of_sm = 2;
constexpr Int64 k_most_blocks = 4096;

// Each step waits for the last launch itself where its code can (common/cuda/overlap.cuh). Graphs
// have such launches from CUDA 12.3 on.
bool overlaps(Target target, const Driver& driver) {
  const bool waits =
      target == Target::sm_90a || target == Target::sm_100 || target == Target::sm_120;
  return waits && driver.version() >= 12030;
}

template <class Args>
void launch(const LoadedKernel& kernel, const PpoLossCall& call, int step, Int64 blocks,
            int threads, const Args& args) {
  if (blocks == 0) return;
  void* arguments[] = {const_cast<Args*>(&args)};
  LoadedEntry& to = entry(kernel, step);
  to.launch(call.device.index, static_cast<Stream>(call.stream),
            {.grid = {static_cast<unsigned>(blocks)},
             .block = {static_cast<unsigned>(threads)},
             .overlaps = overlaps(kernel.target, to.driver())},
            arguments);
}

// The arguments of a forward, with the copies that make arrays dense.
class Plan {
 public:
  Plan(Arena& arena, const PpoLossCall& call, int num_sms, DeviceError& error)
      : arena_(arena), args_(ppo_loss_args(call)) {
    args_.error = &error;
    args_.op = "ppo_loss";
    args_.starts = integers(call.cu_seqlens);
    args_.group_starts = integers(call.group_starts);
    args_.mask = mask(call.mask);
    args_.log_probs = floats(call.log_probs);
    args_.old_log_probs = floats(call.old_log_probs);
    args_.advantages = floats(call.advantages);
    args_.weights = floats(call.weights);
    if (reads_rollout(call.choices)) args_.rollout_log_probs = floats(call.rollout_log_probs);
    if (call.choices.correction == kGiven) {
      args_.importance_weights = floats(call.importance_weights);
    }
    if (call.choices.kl != kNoKl) args_.ref_log_probs = floats(call.ref_log_probs);
    if (call.choices.entropy != 0) args_.entropy = floats(call.entropy);
    args_.counts = output_or_own<long long>(call.counts, kNumCounts);
    const Int64 sequences = args_.num_sequences;
    args_.sequence_tokens = arena_.take<long long>(sequences);
    args_.sequence_weight = output_or_own<float>(call.sequence_weight, sequences);
    args_.sequence_kl_weight = output_or_own<float>(call.sequence_kl_weight, sequences);
    args_.sequence_log_ratio = arena_.take<float>(sequences);
    args_.sequence_statistic = output_or_own<float>(call.sequence_statistic, sequences);
    args_.sequence_advantage = arena_.take<float>(sequences);
    args_.sequence_grad = arena_.take<float>(sequences);
    const Int64 tiles = ceil_div(args_.num_tokens, kPpoLossTile);
    args_.num_items = std::clamp<Int64>(
        tiles, 1, std::max(k_blocks_of_sm * num_sms, ceil_div(tiles, kPpoLossMostTiles)));
    args_.tally = arena_.take<PpoLossTally>(1);
    args_.weighs_in_main = weighs_in_main(call);
    args_.has_groups = has_groups();
  }

  const PpoLossArgs& args() const { return args_; }
  std::span<const PpoLossPack> packs() const { return {packs_.data(), num_packs_}; }

 private:
  // Where no other step asks for weights, and one look at all sequences is enough for them.
  bool weighs_in_main(const PpoLossCall& call) const {
    return args_.num_sequences <= kPpoLossMostWeighed && args_.group_starts == nullptr &&
           call.reduction != kGroupMean && call.kl_reduction != kGroupMean &&
           call.choices.ratio != kSequenceRatio && !call.sequence_weight.present();
  }

  // Four floats on 16 bytes, four of a mask on 4. What is one a sequence is not asked.
  bool has_groups() const {
    std::uintptr_t floats = 0;
    const auto add = [&](const float* array, bool is_of_sequence = false) {
      if (!is_of_sequence) floats |= reinterpret_cast<std::uintptr_t>(array);
    };
    add(args_.log_probs);
    add(args_.old_log_probs);
    add(args_.advantages, args_.advantage_is_of_sequence != 0);
    add(args_.rollout_log_probs);
    add(args_.ref_log_probs);
    add(args_.entropy);
    add(args_.importance_weights, args_.importance_is_of_sequence != 0);
    add(args_.weights, args_.weight_is_of_sequence != 0);
    add(args_.grad);
    add(args_.grad_entropy);
    return floats % 16 == 0 && reinterpret_cast<std::uintptr_t>(args_.mask) % 4 == 0;
  }

  template <class T>
  T* output_or_own(const Tensor& tensor, Int64 count) {
    return tensor.present() ? static_cast<T*>(tensor.data) : arena_.take<T>(count);
  }

  template <class T>
  const T* dense(const Tensor& tensor, bool fits, PpoLossPack::Kind kind) {
    if (!tensor.present()) return nullptr;
    const Int64 count = tensor.num_elements();
    if (fits && (count <= 1 || flat_stride(tensor.dims(), tensor.steps()) == 1)) {
      return static_cast<const T*>(tensor.data);
    }
    T* const to = arena_.take<T>(count);
    const bool is_matrix = tensor.rank == 2;
    const Int64 rows = is_matrix ? tensor.shape[0] : 1;
    const Int64 cols = tensor.rank == 0 ? 1 : tensor.shape[tensor.rank - 1];
    packs_.at(num_packs_++) = {tensor.data,
                               to,
                               type_code(tensor.dtype),
                               kind,
                               rows,
                               cols,
                               is_matrix ? tensor.strides[0] : 0,
                               tensor.rank == 0 ? 0 : tensor.strides[tensor.rank - 1]};
    return to;
  }
  const float* floats(const Tensor& tensor) {
    return dense<float>(tensor, tensor.dtype == DType::f32, PpoLossPack::kFloats);
  }
  const long long* integers(const Tensor& tensor) {
    return dense<long long>(tensor, tensor.dtype == DType::i64, PpoLossPack::kIntegers);
  }
  const unsigned char* mask(const Tensor& tensor) {
    const bool is_bytes = tensor.present() && size_bytes(tensor.dtype) == 1;
    return dense<unsigned char>(tensor, is_bytes, PpoLossPack::kBytes);
  }

  Arena& arena_;
  PpoLossArgs args_;
  std::array<PpoLossPack, 11> packs_{};
  std::size_t num_packs_ = 0;
};

// RLK_VALIDATE=sync: what the CPU looks at, before the launch.
void validate(Driver& driver, const PpoLossCall& call) {
  templates::wait_for_values(driver, call);
  const DeviceGuard guard(driver, call.device.index);
  PpoLossCall host = call;
  const templates::HostCopy copies[] = {
      {driver, host.cu_seqlens},    {driver, host.group_starts},     {driver, host.mask},
      {driver, host.global_tokens}, {driver, host.global_sequences}, {driver, host.global_groups}};
  expect_ppo_loss_values(host);
}

void launch_fwd(const LoadedKernel& kernel, const PpoLossCall& call, DeviceError& error,
                int num_sms) {
  if (call.partials.present()) return launch(kernel, call, k_finish, 1, 1024, ppo_loss_args(call));
  Arena sizes(nullptr);
  const Plan counted(sizes, call, num_sms, error);
  Arena memory(call.workspace->allocate(sizes.bytes()));
  const Plan plan(memory, call, num_sms, error);
  const PpoLossArgs& args = plan.args();
  for (const PpoLossPack& pack : plan.packs()) {
    launch(kernel, call, k_pack, std::min(ceil_div(pack.rows * pack.cols, 256), k_most_blocks), 256,
           pack);
  }
  // It clears the tally too, but where it is all that is asked for.
  const Int64 least = call.own_pieces.present() ? 0 : 1;
  launch(kernel, call, k_count, std::clamp<Int64>(args.num_sequences, least, 65535), 512, args);
  if (call.own_pieces.present()) return;
  if (!args.weighs_in_main) launch(kernel, call, k_weigh, 1, 1024, args);
  if (call.sequence_weight.present()) return;
  if (args.choices.ratio == kSequenceRatio) {
    launch(kernel, call, k_slope, std::min<Int64>(args.num_sequences, 65535), 256, args);
  }
  if (call.own_slopes.present()) return;
  launch(kernel, call, k_main, args.num_items, 256, args);
}

void launch_bwd(const LoadedKernel& kernel, const PpoLossCall& call, int num_sms) {
  const PpoLossBackwardArgs args{call.saved.num_elements(),
                                 static_cast<const float*>(call.saved.data),
                                 static_cast<const float*>(call.upstream.data), call.gradient.data};
  // One array is mostly left as it is: then blocks cost more than they do.
  const bool is_in_place = call.gradient.data == call.saved.data;
  const Int64 most = is_in_place ? k_blocks_of_sm * num_sms : k_most_blocks;
  launch(kernel, call, 0, std::min(ceil_div(args.num_tokens, 1024), most), 256, args);
}

}  // namespace

void launch_ppo_loss_cuda(const LoadedKernel& kernel, const PpoLossCall& call,
                          const jit::LaunchSettings& settings) {
  Driver& driver = entry(kernel, 0).driver();
  DeviceError& error = templates::device_error(driver, call.device.index);
  templates::raise_device_error(error);
  const int num_sms = driver.device(call.device.index).sms_within(settings.max_sms);
  if (call.pass == jit::Pass::bwd) return launch_bwd(kernel, call, num_sms);
  if (settings.validate_sync && !call.partials.present()) validate(driver, call);
  launch_fwd(kernel, call, error, num_sms);
}

}  // namespace rlk
