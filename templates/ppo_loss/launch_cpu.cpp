// SPDX-License-Identifier: Apache-2.0
// Runs the steps of a CPU kernel of ppo_loss over the pool. How tokens are cut into items shows
// nowhere in the results.
#include "runtime/thread_pool.hpp"
#include "templates/common/boundaries.hpp"
#include "templates/common/cpu_steps.hpp"
#include "templates/common/dense.hpp"
#include "templates/ppo_loss/op.hpp"

#include <algorithm>

namespace rlk {
namespace {

using runtime::ThreadPool;
using templates::Dense;

enum Step { k_count, k_weigh, k_slope, k_main, k_finish };

constexpr long long k_item_tokens = 2048;     // of a main step; ExactLanes has room for 512 vectors
constexpr long long k_inline_tokens = 16384;  // below, the caller's thread does all

void run(const LoadedKernel& kernel, int entry, const void* args, long long items,
         long long tokens) {
  const auto step = reinterpret_cast<PpoLossCpuStep>(kernel.entries[static_cast<size_t>(entry)]);
  if (items == 0) return;
  if (tokens <= k_inline_tokens) {
    const templates::DefaultFloatMode mode;
    step(args, 0, items);
    return;
  }
  const long long grain = std::max<long long>(1, items * k_item_tokens / tokens);
  const auto body = [&](std::int64_t begin, std::int64_t end, int) {
    const templates::DefaultFloatMode mode;
    step(args, begin, end);
  };
  ThreadPool::instance().run(items, grain, body);
}

float* floats(const Tensor& tensor) {
  return tensor.present() ? static_cast<float*>(tensor.data) : nullptr;
}

void launch_fwd(const LoadedKernel& kernel, const PpoLossCall& call) {
  PpoLossArgs args = ppo_loss_args(call);
  if (call.partials.present()) return run(kernel, k_finish, &args, 1, 0);
  expect_ppo_loss_values(call);
  const auto starts = templates::dense_integers(call.cu_seqlens);
  const auto group_starts = templates::dense_integers(call.group_starts);
  const auto mask = templates::dense_mask(ppo_loss_mask(call));
  const auto log_probs = templates::dense_floats(call.log_probs);
  const auto old_log_probs = templates::dense_floats(call.old_log_probs);
  const auto advantages = templates::dense_floats(call.advantages);
  const auto weights = templates::dense_floats(call.weights);
  Dense<float> rollout, ref, entropy, importance;
  if (reads_rollout(call.choices)) rollout = templates::dense_floats(call.rollout_log_probs);
  if (call.choices.correction == kGiven) {
    importance = templates::dense_floats(call.importance_weights);
  }
  if (call.choices.kl != kNoKl) ref = templates::dense_floats(call.ref_log_probs);
  if (call.choices.entropy != 0) entropy = templates::dense_floats(call.entropy);
  args.starts = starts.data;
  args.group_starts = group_starts.data;
  args.mask = mask.data;
  args.log_probs = log_probs.data;
  args.old_log_probs = old_log_probs.data;
  args.advantages = advantages.data;
  args.weights = weights.data;
  args.rollout_log_probs = rollout.data;
  args.importance_weights = importance.data;
  args.ref_log_probs = ref.data;
  args.entropy = entropy.data;

  const auto sequences = static_cast<std::size_t>(args.num_sequences);
  std::vector<long long> tokens(sequences), items{0}, item_sequences;
  std::vector<float> values(6 * sequences);
  args.sequence_tokens = tokens.data();
  args.sequence_weight = values.data();
  args.sequence_kl_weight = values.data() + sequences;
  args.sequence_log_ratio = values.data() + 2 * sequences;
  args.sequence_statistic = values.data() + 3 * sequences;
  args.sequence_advantage = values.data() + 4 * sequences;
  args.sequence_grad = values.data() + 5 * sequences;
  for (long long i = 0; i < args.num_sequences; ++i) {
    const long long last = starts.data ? starts.data[i + 1] : (i + 1) * args.length;
    while (items.back() < last) {
      items.push_back(std::min(items.back() + k_item_tokens, last));
      item_sequences.push_back(i);
    }
  }
  std::vector<PpoLossPartial> partials(item_sequences.size());
  args.items = items.data();
  args.item_sequences = item_sequences.data();
  args.num_items = static_cast<long long>(item_sequences.size());
  args.partials = partials.data();

  const LossChoices& c = args.choices;
  const bool has_means = c.ratio != kTokenRatio || c.level != kTokenLevel || c.mean_advantage != 0;
  const long long to_count = has_means ? args.num_tokens : args.num_tokens / 16;
  run(kernel, k_count, &args, args.num_sequences, args.pieces ? 0 : to_count);
  if (call.own_pieces.present()) return;
  run(kernel, k_weigh, &args, 1, 0);
  if (c.ratio == kSequenceRatio) {
    run(kernel, k_slope, &args, args.num_sequences, args.slopes ? 0 : args.num_tokens);
  }
  if (call.own_slopes.present()) return;
  run(kernel, k_main, &args, args.num_items, args.num_tokens);
  run(kernel, k_finish, &args, 1, 0);
}

void launch_bwd(const LoadedKernel& kernel, const PpoLossCall& call) {
  const auto saved = templates::dense_floats(call.saved);
  const PpoLossBackwardArgs args{call.saved.num_elements(), saved.data, floats(call.upstream),
                                 call.gradient.data};
  run(kernel, 0, &args, args.num_tokens, args.num_tokens / 4);
}

}  // namespace

void launch_ppo_loss_cpu(const LoadedKernel& kernel, const PpoLossCall& call) {
  call.pass == jit::Pass::fwd ? launch_fwd(kernel, call) : launch_bwd(kernel, call);
}

}  // namespace rlk
