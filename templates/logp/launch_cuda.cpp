// SPDX-License-Identifier: Apache-2.0
// The launch sequence of kernel.cuh. Parts of rows and copies are chosen here: they show nowhere in
// the results.
#include "runtime/cuda/cuda_loader.hpp"
#include "templates/common/device_errors.hpp"
#include "templates/common/logp/host.hpp"
#include "templates/logp/cuda_args.h"
#include "templates/logp/op.hpp"

#include <algorithm>

namespace rlk {
namespace {

using namespace runtime::cuda;

constexpr Int64 k_most_blocks = Int64{1} << 30;
constexpr Int64 k_blocks_of_sm = 8;   // so many give each multiprocessor enough to read
constexpr Int64 k_least_leaves = 32;  // of a part: what a block reads at once
constexpr Int64 k_most_gradient_leaves = 128;

struct Plan {
  LogpCudaArgs args{};
  LogpCudaCopies copies;
  bool has_entropy = false, has_stats = false;
};

Plan make_plan(Arena& arena, const LogpCall& call, int num_sms) {
  Plan plan;
  LogpCudaArgs& args = plan.args;
  args.vocab = call.vocab();
  plan.copies.set_rows(arena, call, args);
  args.logits = logp_cuda_matrix(call.logits);
  args.op = "logp";
  const bool forward = call.pass == jit::Pass::fwd;
  if (!forward) {
    args.grad_logits = logp_cuda_matrix(call.grad_logits);
    args.unless_one = static_cast<const float*>(call.unless_one.data);
  }
  const Int64 leaves = forward ? args.leaves().count() : ceil_div(args.vocab, Int64{kLogpLeaf});
  const Int64 rows = std::max<Int64>(args.num_rows, 1);
  // A row of many leaves is worth more blocks where the rows alone do not fill the card.
  Int64 parts = rows < k_blocks_of_sm / 2 * num_sms ? ceil_div(k_blocks_of_sm * num_sms, rows) : 1;
  const Int64 most_leaves = forward ? kLogpMostSharedLeaves : k_most_gradient_leaves;
  parts =
      std::max(std::min(parts, ceil_div(leaves, k_least_leaves)), ceil_div(leaves, most_leaves));
  args.part_leaves = ceil_div(leaves, parts);
  args.num_parts = ceil_div(leaves, args.part_leaves);
  plan.has_entropy = call.needs_entropy();
  plan.has_stats = call.needs_stats();
  if (forward && args.num_parts > 1) {
    args.partial_max = arena.take<float>(rows * leaves);
    args.partial_sum = arena.take<float>(rows * leaves);
    if (plan.has_entropy) args.partial_moment = arena.take<float>(rows * leaves);
    if (plan.has_stats) {
      args.partial_stats = {arena.take<float>(rows * leaves), arena.take<float>(rows * leaves),
                            arena.take<int>(rows * leaves)};
    }
  }
  return plan;
}

}  // namespace

LogpCudaMatrix logp_cuda_matrix(const Tensor& tensor) {
  LogpCudaMatrix m{tensor.data, tensor.strides[tensor.rank - 1], 0, {}, {}};
  const auto leading = static_cast<std::size_t>(tensor.rank - 1);
  if (const auto stride =
          flat_stride(tensor.dims().first(leading), tensor.steps().first(leading))) {
    m.num_axes = 1;
    m.sizes[0] = tensor.num_elements() / tensor.shape[tensor.rank - 1];
    m.strides[0] = *stride;
    return m;
  }
  m.num_axes = tensor.rank - 1;
  for (int axis = 0; axis < m.num_axes; ++axis) {
    m.sizes[axis] = tensor.shape[axis];
    m.strides[axis] = tensor.strides[axis];
  }
  return m;
}

void launch_logp_cuda(const LoadedKernel& kernel, const LogpCall& call,
                      const jit::LaunchSettings& settings) {
  Driver& driver = entry(kernel, 0).driver();
  DeviceError& error = templates::device_error(driver, call.device.index);
  templates::raise_device_error(error);
  if (settings.validate_sync) {
    validate_logp_cuda(driver, call, call.logits, call.vocab());
  }
  if (call.target.num_elements() == 0) return;
  const int num_sms = driver.device(call.device.index).sms_within(settings.max_sms);
  Arena sizes(nullptr);
  make_plan(sizes, call, num_sms);
  Arena memory(sizes.bytes() == 0 ? nullptr : call.workspace->allocate(sizes.bytes()));
  Plan plan = make_plan(memory, call, num_sms);
  plan.args.error = &error;

  const auto launch = [&](int step, Int64 blocks, int threads, auto& args, int shared_bytes = 0) {
    void* arguments[] = {&args};
    entry(kernel, step)
        .launch(call.device.index, static_cast<Stream>(call.stream),
                {{static_cast<unsigned>(std::min(blocks, k_most_blocks))},
                 {static_cast<unsigned>(threads)},
                 static_cast<unsigned>(shared_bytes)},
                arguments);
  };
  for (CudaCopy copy : plan.copies.all()) {
    launch(0, std::min<Int64>(copy.num_rows, 1024), 256, copy);
  }
  LogpCudaArgs& args = plan.args;
  const bool forward = call.pass == jit::Pass::fwd;
  if (call.parts.present()) return launch(3, ceil_div(args.num_rows, 256), 256, args);
  const bool is_shared = forward && args.num_parts == 1;
  const Int64 leaves = args.leaves().count();
  launch(1, args.num_rows * args.num_parts, kLogpThreads, args,
         is_shared ? logp_partial_bytes(leaves, plan.has_entropy, plan.has_stats) : 0);
  if (forward && !is_shared) launch(2, args.num_rows, kLogpThreads, args);
}

}  // namespace rlk
