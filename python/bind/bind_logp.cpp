// SPDX-License-Identifier: Apache-2.0
// linear_logp and logp: from a dictionary of Python's arguments to a call, and its results back.
#include "jit/dispatcher.hpp"
#include "python/bind/call_arguments.hpp"
#include "python/bind/linear_logp_memory.hpp"
#include "python/bind/module.hpp"
#include "templates/linear_logp/op.hpp"
#include "templates/logp/op.hpp"

#include <pybind11/stl.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <tuple>
#include <type_traits>

namespace rlk::bind {
namespace {

// What the two ops differ in.
const jit::Op& op_of(const LinearLogpCall&) { return templates::linear_logp_op; }
const jit::Op& op_of(const LogpCall&) { return templates::logp_op; }
const Tensor& matrix_of(const LinearLogpCall& call) { return call.hidden; }
const Tensor& matrix_of(const LogpCall& call) { return call.logits; }

// Log-prob and the like: float32, one value per row.
std::span<const std::int64_t> row_dims(const Tensor& matrix) {
  return matrix.dims().first(static_cast<std::size_t>(matrix.rank - 1));
}

// A call, with what keeps its tensors alive, and its results, made one by one.
template <class Call>
struct Bound {
  Call call;
  BoundArguments arguments;
  std::array<Output, 10> outputs;
  std::size_t num_outputs = 0;

  explicit Bound(const py::dict& given) : arguments(bind_call(op_of(call), given, call)) {}

  void check() const { call.op->check(call); }  // before results of a wrong shape are made

  py::object make(Tensor& slot, DType dtype, std::span<const std::int64_t> dims) {
    Output& output = outputs.at(num_outputs++);
    output = make_output(arguments.framework, dtype, call.device, dims, call.stream);
    slot = output.tensor;
    return output.object;
  }
  py::object make_per_row(Tensor& slot) {
    return make(slot, DType::f32, row_dims(matrix_of(call)));
  }
  py::object make_like(const Tensor& like, Tensor& slot) {
    return make(slot, like.dtype, like.dims());
  }
  void run() { run_call(call, arguments.framework, outputs); }
};

// (max_logit, argmax, mean_logit, sum_p2), or None.
template <class Call>
py::object make_stats(Bound<Call>& bound) {
  Call& call = bound.call;
  if (!call.return_stats) return py::none();
  const py::object max_logit = bound.make_per_row(call.max_logit);
  const py::object argmax = bound.make(call.argmax, DType::i64, row_dims(matrix_of(call)));
  const py::object mean_logit = bound.make_per_row(call.mean_logit);
  return py::make_tuple(max_logit, argmax, mean_logit, bound.make_per_row(call.sum_p2));
}

// What a backward of linear_logp takes of its forward besides.
constexpr jit::Parameter k_kept_parameters[] = {
    {"kept", jit::Kind::tensor, jit::field_of<&LinearLogpCall::kept>},
    {"may_overwrite_kept", jit::Kind::flag, jit::field_of<&LinearLogpCall::may_overwrite_kept>},
};

// What a forward keeps for its backward, without memory; absent where that is nothing.
Tensor kept_by(const LinearLogpCall& call) {
  if (!linear_logp_keeps(call, target_of(call))) return {};
  return linear_logp_kept_tensor(call, jit::Dispatcher::instance().saved_mib());
}

// Exponentials for the backward and the target that makes them, or None where none are to be kept.
// `memory`: of chunks, where they are the call's own rows in it.
py::object make_kept(Bound<LinearLogpCall>& bound, const py::object& memory = py::none()) {
  LinearLogpCall& call = bound.call;
  if (!memory.is_none()) {
    const Tensor all = bind_writable(memory, "kept", call);
    call.kept = linear_logp_kept_of_chunk(call, target_of(call), all);
    return py::make_tuple(memory, static_cast<int>(target_of(call)));
  }
  const Tensor kept = kept_by(call);
  if (!kept.present()) return py::none();
  return py::make_tuple(bound.make_like(kept, call.kept), static_cast<int>(target_of(call)));
}

// A rank's columns of a vocabulary that several ranks have: the first one's id, the columns of all,
// those of a segment or 0 (LogpCallBase).
using MaybeShard = std::optional<std::tuple<std::int64_t, std::int64_t, std::int64_t>>;

void set_shard(LogpCallBase& call, const MaybeShard& shard) {
  if (shard) std::tie(call.first_id, call.num_ids, call.segment) = *shard;
}

// Results of a call, None for what is not asked for.
struct RowResults {
  std::array<py::object, 5> all;  // log_prob, entropy, lse, row_max, row_log_sum
  py::object stats = py::none();

  RowResults() { all.fill(py::none()); }
  py::tuple tuple() const { return py::make_tuple(all[0], all[1], all[2], all[3], all[4]); }
};

// `save`: row_*, for a backward.
template <class Call>
RowResults make_results(Bound<Call>& bound, bool save) {
  Call& call = bound.call;
  RowResults results;
  results.all[0] = bound.make_per_row(call.log_prob);
  if (call.return_entropy) results.all[1] = bound.make_per_row(call.entropy);
  if (call.return_lse) results.all[2] = bound.make_per_row(call.lse);
  if (save) results.all[3] = bound.make_per_row(call.row_max);
  if (save) results.all[4] = bound.make_per_row(call.row_log_sum);
  results.stats = make_stats(bound);
  return results;
}

// The rank's part [values, rows], which the results of a row point into: common/logp/shard.h.
template <class Call>
py::object make_part(Bound<Call>& bound) {
  Call& call = bound.call;
  const std::int64_t rows = call.target.num_elements();
  const std::array dims{std::int64_t{logp_part_values(call.return_entropy, call.return_stats)},
                        rows};
  const py::object part = bound.make(call.part, DType::f32, dims);
  float* next = static_cast<float*>(call.part.data);
  const auto point = [&](Tensor& slot) {
    slot = dense_tensor(next, DType::f32, call.device, row_dims(matrix_of(call)));
    next += rows;
  };
  point(call.log_prob);
  point(call.row_max);
  point(call.row_log_sum);
  if (call.return_entropy) point(call.entropy);
  if (call.return_stats) {
    point(call.mean_logit);
    point(call.sum_p2);
    point(call.max_logit);
    call.argmax = call.max_logit;
  }
  return part;
}

// The part of a rank, and of linear_logp what its forward keeps; `differentiated` as below.
template <class Call>
py::object forward_part(const py::dict& arguments, bool keep, bool differentiated,
                        const MaybeShard& shard) {
  Bound<Call> bound(arguments);
  bound.call.is_differentiated = differentiated;
  set_shard(bound.call, shard);
  bound.check();
  const py::object part = make_part(bound);
  py::object kept = py::none();
  if constexpr (std::is_same_v<Call, LinearLogpCall>) {
    if (keep) kept = make_kept(bound);
  }
  bound.run();
  return py::make_tuple(part, kept);
}

// The results of a call whose ranks gave `parts`, [ranks, values, rows]; `save`: with what a
// backward takes.
template <class Call>
py::object join(const py::dict& arguments, py::handle parts, const MaybeShard& shard, bool save) {
  Bound<Call> bound(arguments);
  Call& call = bound.call;
  set_shard(call, shard);
  const TensorArgument given = bind_argument(parts, "parts", call);
  call.parts = given.tensor;
  bound.check();
  const RowResults results = make_results(bound, save);
  bound.run();
  py::tuple found = results.tuple();
  if constexpr (std::is_same_v<Call, LinearLogpCall>) found = found + py::make_tuple(py::none());
  return call.return_stats ? found + py::make_tuple(results.stats) : found;
}

// What a forward keeps, for those that have sizes and no tensors: (target, dtype, rows and columns
// of each limit), or None where the target's kernels keep nothing. `cuda_index`: None on the CPU.
py::object kept_limits(const std::optional<int>& cuda_index, const std::string& dtype,
                       std::int64_t vocab, std::int64_t mib) {
  LinearLogpCall call;
  if (cuda_index) call.device = {Device::Kind::cuda, *cuda_index};
  constexpr DType k_dtypes[] = {DType::f32, DType::bf16, DType::f16};
  const auto* found = std::ranges::find(k_dtypes, dtype, [](DType own) { return name(own); });
  if (found == std::end(k_dtypes) || vocab < 1) return py::none();
  const std::array sizes{vocab, std::int64_t{1}};
  call.weight = call.hidden = dense_tensor(nullptr, *found, call.device, sizes);
  if (!linear_logp_keeps(call, target_of(call))) return py::none();
  const auto [all, half] = linear_logp_kept_limits(call, mib);
  return py::make_tuple(static_cast<int>(target_of(call)), name(linear_logp_kept_dtype(call)),
                        py::make_tuple(all.rows, all.columns, half.rows, half.columns));
}

// The log-prob; where more is asked for (log_prob, entropy, lse, row_max, row_log_sum), None for
// what is not, then of linear_logp `kept`, and after them the statistics where they are asked for.
// `save`: row_*, for a backward; `keep`: and what it may keep, in the memory `kept` where given;
// `differentiated`: autograd will ask for gradients.
template <class Call>
py::object forward(const py::dict& arguments, bool save, bool keep, bool differentiated,
                   const py::object& kept = py::none()) {
  Bound<Call> bound(arguments);
  Call& call = bound.call;
  call.is_differentiated = differentiated;
  bound.check();
  const RowResults results = make_results(bound, save);
  py::tuple more;
  if constexpr (std::is_same_v<Call, LinearLogpCall>) {
    more = py::make_tuple(keep ? make_kept(bound, kept) : py::none());
  }
  bound.run();
  if (!call.return_entropy && !call.return_lse && !call.return_stats && !save) {
    return results.all[0];
  }
  if (call.return_stats) more = more + py::make_tuple(results.stats);
  return results.tuple() + more;
}

// A backward as far as its gradients: bound, checked, and where nothing was saved with the values
// per row that one more forward gives. `prepare` sets what the check looks at besides.
template <class Call, class Prepare>
Bound<Call> begin_backward(const py::dict& arguments, const MaybeShard& shard,
                           const Prepare& prepare) {
  Bound<Call> bound(arguments);
  Call& call = bound.call;
  set_shard(call, shard);
  call.pass = jit::Pass::bwd;
  bind_parameters(k_gradient_parameters, arguments, call, bound.arguments);
  const bool runs_forward = !call.row_max.present();
  if (runs_forward && shard) throw std::logic_error("a shard's backward without row_max");
  if (runs_forward && call.grad_entropy.present()) {
    call.entropy = dense_tensor(nullptr, DType::f32, {}, {});  // to come
  }
  prepare(bound);
  bound.check();
  if (!runs_forward) return bound;
  Bound<Call> first = bound;
  first.call.pass = jit::Pass::fwd;
  first.call.is_differentiated = true;
  first.make_per_row(first.call.log_prob);
  first.make_per_row(first.call.row_max);
  first.make_per_row(first.call.row_log_sum);
  if (call.grad_entropy.present()) first.make_per_row(first.call.entropy);
  first.run();
  call.row_max = first.call.row_max;
  call.row_log_sum = first.call.row_log_sum;
  call.log_prob = first.call.log_prob;
  call.entropy = first.call.entropy;
  for (const Output& output : first.outputs) bound.arguments.owners.push_back(output.object);
  return bound;
}

// Gradients of hidden, weight and bias, None where not needed and of a weight whose gradient is
// added to accumulate_into. Those of hidden and weight are float32 where `sums_of_` says so.
//
// `into`, (hidden, weight, bias): written in place of new ones, whose dtypes are then theirs; each
// is given where its gradient is needed. With `unless_one`, one float32 on the device, nothing is
// done where that is 1.
//
// `chunk`: the arguments are those of some rows of a longer call, a chunk of several that follow
// each other; a dictionary of the tensors of chunk_memory, is_first and is_last. "kept" is the
// memory of that name, to which the chunk's forward has written, and is written over. Chunks but
// the last have a multiple of 128 rows. `into` is given: the rows of hidden's gradient; weight's
// and bias's in the last chunk, weight's or accumulate_into, or weight_sums is the gradient.
py::tuple linear_logp_backward(const py::dict& arguments, bool needs_hidden, bool needs_weight,
                               bool needs_bias, bool sums_of_hidden, bool sums_of_weight,
                               const MaybeShard& shard, const std::optional<py::dict>& of_chunk,
                               const std::optional<std::array<py::object, 3>>& into,
                               const py::object& unless_one) {
  LinearLogpChunk chunk;
  auto bound = begin_backward<LinearLogpCall>(arguments, shard, [&](Bound<LinearLogpCall>& begun) {
    LinearLogpCall& call = begun.call;
    bind_parameters(k_kept_parameters, arguments, call, begun.arguments);
    if (call.kept.present() &&
        arguments["kept_target"].cast<int>() != static_cast<int>(target_of(call))) {
      call.kept = {};  // configure() has changed it since
    }
    if (of_chunk) {
      chunk = bind_chunk(*of_chunk, call);
      call.kept = linear_logp_kept_of_chunk(call, target_of(call), call.kept, &chunk);
      call.may_overwrite_kept = true;
      call.chunk = &chunk;
    }
    // Checked with the gradients that are asked for, before any is allocated.
    const Tensor none_yet = dense_tensor(nullptr, DType::f32, {}, {});
    if (needs_bias) call.grad_bias = call.bias.present() ? call.bias : none_yet;
  });
  LinearLogpCall& call = bound.call;
  if (call.accumulate_into.present()) {
    constexpr const char* argument = "accumulate_into";
    if (!needs_weight) {
      throw InvalidArgument(ArgumentName{call.op->name, argument}.fault(
          "None where weight's gradient is not asked for", "a tensor"));
    }
    bind_writable(arguments[argument], argument, call);
  }
  if (into) {
    set_gradients(call, *into, {needs_hidden, needs_weight, needs_bias});
    const TensorArgument factor = bind_factor(unless_one, call);
    call.unless_one = factor.tensor;
    bound.run();
    return py::make_tuple((*into)[0], (*into)[1], (*into)[2]);
  }
  if (of_chunk || !unless_one.is_none()) {
    throw std::logic_error("chunk and unless_one are for gradients of the caller's: into");
  }
  py::object hidden = py::none(), weight = py::none(), bias = py::none();
  const auto make = [&](const Tensor& like, bool sums, Tensor& slot) {
    return bound.make(slot, sums ? DType::f32 : like.dtype, like.dims());
  };
  if (needs_hidden) hidden = make(call.hidden, sums_of_hidden, call.grad_hidden);
  if (needs_weight && call.accumulate_into.present()) {
    call.grad_weight = call.accumulate_into;
    call.accumulates = true;
  } else if (needs_weight) {
    weight = make(call.weight, sums_of_weight, call.grad_weight);
  }
  if (needs_bias) bias = bound.make_like(call.bias, call.grad_bias);
  bound.run();
  return py::make_tuple(hidden, weight, bias);
}

// The gradient of the logits; None where they were written over. Written into `into` where given,
// an earlier call's result, and then only if `unless_one`, one float32, is not 1.
py::object logp_backward(const py::dict& arguments, py::object into, py::handle unless_one,
                         const MaybeShard& shard) {
  auto bound = begin_backward<LogpCall>(arguments, shard, [](Bound<LogpCall>&) {});
  LogpCall& call = bound.call;
  TensorArgument grad, factor;
  if (call.in_place) {
    call.grad_logits = call.logits;
    into = py::none();
  } else if (into.is_none()) {
    into = bound.make_like(call.logits, call.grad_logits);
  } else {
    grad = bind_argument(into, "into", call);
    factor = bind_argument(unless_one, "unless_one", call);
    call.grad_logits = grad.tensor;
    call.unless_one = factor.tensor;
  }
  bound.run();
  return into;
}

// The backward of a call with return_entropy or return_lse is that of all its outputs.
template <class Call>
py::tuple explain(const py::dict& arguments, const MaybeShard& shard) {
  Bound<Call> bound(arguments);
  Call& call = bound.call;
  set_shard(call, shard);
  const bool backward = flag_of(arguments, "backward", call);
  bound.check();  // the matrix has a last axis to leave out
  const Tensor per_row = dense_tensor(nullptr, DType::f32, call.device, row_dims(matrix_of(call)));
  if (call.return_entropy) call.entropy = per_row;
  if (call.return_lse) call.lse = per_row;
  if (call.return_stats) call.argmax = per_row;
  if constexpr (std::is_same_v<Call, LinearLogpCall>) {
    const bool keeps = !backward && flag_of(arguments, "keep", call);
    if (keeps) call.kept = kept_by(call);
  }
  if (backward) {
    call.pass = jit::Pass::bwd;
    call.grad_output = per_row;
    if (call.return_entropy) call.grad_entropy = per_row;
    if (call.return_lse) call.grad_lse = per_row;
  }
  return explain_call(call);
}

}  // namespace

void bind_logp(py::module_& module) {
  module.def(
      "linear_logp_forward",
      [](const py::dict& arguments, bool save, bool keep, const MaybeShard& shard,
         const py::object& kept) {
        if (shard) return forward_part<LinearLogpCall>(arguments, keep, save, shard);
        return forward<LinearLogpCall>(arguments, save, keep, save, kept);
      },
      py::arg("arguments"), py::arg("save") = false, py::arg("keep") = false,
      py::arg("shard") = py::none(), py::arg("kept") = py::none());
  module.def("linear_logp_chunk_memory", chunk_memory, py::arg("arguments"), py::arg("rows"));
  module.def("linear_logp_join", join<LinearLogpCall>, py::arg("arguments"), py::arg("parts"),
             py::arg("shard"), py::arg("save"));
  module.def("linear_logp_backward", linear_logp_backward, py::arg("arguments"),
             py::arg("needs_hidden"), py::arg("needs_weight"), py::arg("needs_bias"),
             py::arg("sums_of_hidden") = false, py::arg("sums_of_weight") = false,
             py::arg("shard") = py::none(), py::arg("chunk") = py::none(),
             py::arg("into") = py::none(), py::arg("unless_one") = py::none());
  module.def("linear_logp_kept_limits", kept_limits, py::arg("cuda_index"), py::arg("dtype"),
             py::arg("vocab"), py::arg("mib"));
  module.def("linear_logp_explain", explain<LinearLogpCall>, py::arg("arguments"),
             py::arg("shard") = py::none());
  module.def(
      "logp_forward",
      [](const py::dict& arguments, bool save, bool differentiated, const MaybeShard& shard) {
        if (shard) return forward_part<LogpCall>(arguments, false, differentiated, shard);
        return forward<LogpCall>(arguments, save, false, differentiated);
      },
      py::arg("arguments"), py::arg("save") = false, py::arg("differentiated") = false,
      py::arg("shard") = py::none());
  module.def("logp_join", join<LogpCall>, py::arg("arguments"), py::arg("parts"), py::arg("shard"),
             py::arg("save"));
  module.def("logp_backward", logp_backward, py::arg("arguments"), py::arg("into") = py::none(),
             py::arg("unless_one") = py::none(), py::arg("shard") = py::none());
  module.def("logp_explain", explain<LogpCall>, py::arg("arguments"),
             py::arg("shard") = py::none());
}

}  // namespace rlk::bind
