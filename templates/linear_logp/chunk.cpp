// SPDX-License-Identifier: Apache-2.0
// Backwards over chunks of rows: which calls can be taken so, and the memory that chunks share.
#include "templates/common/expect.hpp"
#include "templates/common/logp/host.hpp"
#include "templates/linear_logp/cuda_args.h"
#include "templates/linear_logp/launch_cpu.hpp"
#include "templates/linear_logp/op.hpp"

#include <algorithm>
#include <array>
#include <string>
#include <tuple>

namespace rlk {
namespace {

bool has_chunks(const LinearLogpCall& call, Target target) {
  if (call.softcap || call.entropy_grad || call.grad_entropy.present()) return false;
  if (call.num_ids != 0 || call.parts.present()) return false;
  if (backend(target) == Backend::cpu) return true;
  return call.hidden.dtype == DType::bf16 && linear_logp_keeps(call, target);
}

void expect_like(const LinearLogpCall& call, const Tensor& given, const Tensor& wanted,
                 const char* argument) {
  const Given tensor{call, given, argument};
  expect_present(tensor);
  expect_device(tensor, "hidden");
  if (given.dtype != wanted.dtype || !std::ranges::equal(given.dims(), wanted.dims()) ||
      !is_dense(given) || reinterpret_cast<std::uintptr_t>(given.data) % 16 != 0) {
    tensor.fail(fmt::format("contiguous {} {}, at an address of whole 16 bytes", name(wanted.dtype),
                            text(wanted.dims())),
                fmt::format("{} {}", name(given.dtype), text(given.dims())));
  }
}

}  // namespace

std::optional<LinearLogpChunkMemory> linear_logp_chunk_memory(const LinearLogpCall& call,
                                                              Target target, std::int64_t rows) {
  if (rows < 1 || !has_chunks(call, target)) return std::nullopt;
  const auto tensor = [&](DType dtype, std::array<std::int64_t, 2> shape) {
    return dense_tensor(nullptr, dtype, call.device, shape);
  };
  const bool is_cpu = backend(target) == Backend::cpu;
  const std::int64_t vocab = call.weight.shape[0], dim = call.weight.shape[1];
  const std::int64_t segment = segment_of(call, vocab);
  const std::int64_t columns = ceil_div(vocab, segment) * linear_logp_kept_step(call);
  LinearLogpChunkMemory memory;
  memory.first_kept_row = is_cpu ? 0 : kLinearLogpCarriedRows;
  const std::int64_t all_rows = memory.first_kept_row + rows;
  memory.kept = tensor(linear_logp_kept_dtype(call), {all_rows, columns});
  LinearLogpChunk& chunk = memory.chunk;
  if (!is_cpu) chunk.hidden = tensor(call.hidden.dtype, {all_rows, round_up(dim, 8)});
  const std::array num_states{std::int64_t{2}};
  chunk.state = dense_tensor(nullptr, DType::i64, call.device, num_states);
  chunk.weight_sums = tensor(DType::f32, {vocab, dim});
  if (!call.bias.present()) return memory;
  const std::int64_t lanes = linear_logp_cpu_tile(vector_lanes(target)).panel();
  chunk.bias_sums = is_cpu ? tensor(DType::f32, {vocab, lanes})
                           : tensor(DType::f32, {kLinearLogpBiasChains, vocab});
  return memory;
}

Tensor linear_logp_kept_of_chunk(const LinearLogpCall& call, Target target, const Tensor& kept,
                                 const LinearLogpChunk* chunk) {
  const std::int64_t rows = call.target.num_elements();
  const auto own = linear_logp_chunk_memory(call, target, std::max<std::int64_t>(rows, 1));
  if (!own) {
    throw Unsupported(Fault{
        std::string(call.op->name), "chunk",
        "neither softcap, a gradient of the entropy nor a shard, and on CUDA bfloat16 on sm_90a",
        fmt::format("{} on {}", name(call.hidden.dtype), name(target))});
  }
  const Given given{call, kept, "kept"};
  expect_present(given);
  const std::int64_t room = kept.rank == 2 ? kept.shape[0] - own->first_kept_row : 0;
  if (rows < 1 || room < rows) {
    given.fail(fmt::format("memory of 1 row at least, for {} rows", rows), text(kept.dims()));
  }
  const auto memory = linear_logp_chunk_memory(call, target, room);
  expect_like(call, kept, memory->kept, "kept");
  if (chunk != nullptr) {
    const LinearLogpChunk& wanted = memory->chunk;
    if (wanted.hidden.present()) expect_like(call, chunk->hidden, wanted.hidden, "chunk_hidden");
    expect_like(call, chunk->state, wanted.state, "chunk_state");
    for (const auto& [sums, like, argument] :
         {std::tuple{&chunk->weight_sums, &wanted.weight_sums, "weight_sums"},
          std::tuple{&chunk->bias_sums, &wanted.bias_sums, "bias_sums"}}) {
      if (!sums->present()) continue;
      if (!like->present()) Given{call, *sums, argument}.fail("None without {bias}", "a tensor");
      expect_like(call, *sums, *like, argument);
    }
    if (!chunk->is_last && rows % kLinearLogpChunkRows != 0) {
      Given{call, call.hidden, "hidden"}.fail(
          fmt::format("a multiple of {} rows in a chunk that is not the last",
                      kLinearLogpChunkRows),
          std::to_string(rows));
    }
  }
  const auto row_bytes =
      kept.shape[1] * static_cast<std::int64_t>(size_bytes(kept.dtype)) * own->first_kept_row;
  const std::array shape{rows, kept.shape[1]};
  return dense_tensor(static_cast<std::byte*>(kept.data) + row_bytes, kept.dtype, call.device,
                      shape);
}

}  // namespace rlk
