// SPDX-License-Identifier: Apache-2.0
// Binds memory that a call of linear_logp writes to.
#include "python/bind/linear_logp_memory.hpp"

#include "jit/dispatcher.hpp"
#include "python/bind/module.hpp"

#include <algorithm>
#include <utility>

namespace rlk::bind {
namespace {

// A gradient that the caller has made, dense and of the operand's dtype or float32; absent for
// None.
Tensor bind_gradient(py::handle object, const char* argument, const Tensor& like,
                     const LinearLogpCall& call) {
  if (object.is_none()) return {};
  const Tensor given = bind_writable(object, argument, call);
  const bool is_dense = given.num_elements() <= 1 || flat_stride(given.dims(), given.steps()) == 1;
  if (given.device != like.device || !is_dense || !std::ranges::equal(given.dims(), like.dims()) ||
      (given.dtype != like.dtype && given.dtype != DType::f32)) {
    throw InvalidArgument(ArgumentName{call.op->name, argument}.fault(
        fmt::format("a contiguous tensor of shape {}, {} or float32", text(like.dims()),
                    name(like.dtype)),
        fmt::format("{} {}", name(given.dtype), text(given.dims()))));
  }
  return given;
}

}  // namespace

Target target_of(const LinearLogpCall& call) {
  return jit::Dispatcher::instance().target(call.device);
}

Tensor bind_writable(py::handle object, const char* argument, const jit::OpCall& call) {
  const TensorArgument given = bind_argument(object, argument, call);
  if (given.is_writable) return given.tensor;
  throw InvalidArgument(ArgumentName{call.op->name, argument}.fault(
      "a tensor that can be written", "one that is read-only or would be copied"));
}

py::object chunk_memory(const py::dict& arguments, std::int64_t rows) {
  LinearLogpCall call;
  const BoundArguments bound = bind_call(templates::linear_logp_op, arguments, call);
  call.op->check(call);
  const auto memory = linear_logp_chunk_memory(call, target_of(call), rows);
  if (!memory) return py::none();
  py::dict found;
  const auto add = [&](const char* name_of_tensor, const Tensor& tensor) {
    if (!tensor.present()) return;
    py::tuple shape(static_cast<std::size_t>(tensor.rank));
    for (int axis = 0; axis < tensor.rank; ++axis) shape[axis] = tensor.shape[axis];
    found[name_of_tensor] = py::make_tuple(shape, name(tensor.dtype));
  };
  const LinearLogpChunk& chunk = memory->chunk;
  add("kept", memory->kept);
  add("chunk_hidden", chunk.hidden);
  add("chunk_state", chunk.state);
  add("weight_sums", chunk.weight_sums);
  add("bias_sums", chunk.bias_sums);
  return found;
}

LinearLogpChunk bind_chunk(const py::dict& given, const LinearLogpCall& call) {
  LinearLogpChunk chunk;
  for (const auto& [slot, argument] :
       {std::pair{&chunk.hidden, "chunk_hidden"}, std::pair{&chunk.state, "chunk_state"},
        std::pair{&chunk.weight_sums, "weight_sums"}, std::pair{&chunk.bias_sums, "bias_sums"}}) {
    if (!given.contains(argument)) continue;
    const py::object object = given[argument];
    if (!object.is_none()) *slot = bind_writable(object, argument, call);
  }
  chunk.is_first = flag_of(given, "is_first", call);
  chunk.is_last = flag_of(given, "is_last", call);
  return chunk;
}

void set_gradients(LinearLogpCall& call, const std::array<py::object, 3>& into,
                   const std::array<bool, 3>& needs) {
  const LinearLogpChunk* const chunk = call.chunk;
  const bool is_last = chunk == nullptr || chunk->is_last;
  const Tensor none;
  call.grad_hidden = bind_gradient(into[0], "into[0]", call.hidden, call);
  call.grad_weight = bind_gradient(into[1], "into[1]", call.weight, call);
  call.grad_bias = bind_gradient(into[2], "into[2]", call.bias.present() ? call.bias : none, call);
  const auto expect = [&](bool wanted, const Tensor& given, const char* argument) {
    if (wanted == given.present()) return;
    throw InvalidArgument(ArgumentName{call.op->name, argument}.fault(
        wanted ? "a tensor" : "None", wanted ? "None" : "a tensor"));
  };
  expect(needs[0], call.grad_hidden, "into[0]");
  expect(needs[2] && is_last, call.grad_bias, "into[2]");
  if (chunk == nullptr && !call.accumulate_into.present()) {
    return expect(needs[1], call.grad_weight, "into[1]");
  }
  if (chunk != nullptr) {
    expect(needs[1], chunk->weight_sums, "weight_sums");
    expect(needs[2], chunk->bias_sums, "bias_sums");
  }
  if (!needs[1] || !is_last || call.accumulate_into.present()) {
    expect(false, call.grad_weight, "into[1]");
  }
  if (!needs[1] || call.grad_weight.present()) return;
  call.accumulates = is_last && call.accumulate_into.present();
  call.grad_weight = call.accumulates ? call.accumulate_into : chunk->weight_sums;
}

TensorArgument bind_factor(py::handle object, const LinearLogpCall& call) {
  if (object.is_none()) return {};
  TensorArgument bound = bind_argument(object, "unless_one", call);
  const Tensor& given = bound.tensor;
  if (given.dtype == DType::f32 && given.num_elements() == 1 && given.device == call.device) {
    return bound;
  }
  throw InvalidArgument(ArgumentName{call.op->name, "unless_one"}.fault(
      "one float32 on {hidden}'s device",
      fmt::format("{} {}", name(given.dtype), text(given.dims()))));
}

}  // namespace rlk::bind
