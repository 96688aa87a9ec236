// SPDX-License-Identifier: Apache-2.0
// Binds what log-prob ops have in common.
#include "python/bind/logp_arguments.hpp"

#include "python/bind/call_stream.hpp"
#include "python/bind/module.hpp"
#include "runtime/error.hpp"

#include <iterator>
#include <string>
#include <string_view>

namespace rlk::bind {
namespace {

TensorArgument bind_named(py::handle object, const char* argument, const jit::OpCall& call,
                          Tensor& slot) {
  const std::string name = std::string(call.op->name) + ": " + argument;
  TensorArgument bound = bind_argument(object, name.c_str(), call);
  slot = bound.tensor;
  return bound;
}

// True is 1 to Python: as a number here it is a mistake.
bool is_bool(py::handle object) {
  return PyBool_Check(object.ptr()) ||
         std::string_view(Py_TYPE(object.ptr())->tp_name).starts_with("numpy.bool");
}

std::optional<std::int64_t> bind_ignore_index(py::handle object, const jit::OpCall& call) {
  if (object.is_none()) return std::nullopt;
  const auto index = py::reinterpret_steal<py::object>(PyNumber_Index(object.ptr()));
  const auto value = index ? PyLong_AsLongLong(index.ptr()) : -1;
  if (is_bool(object) || PyErr_Occurred() != nullptr) {
    PyErr_Clear();
    throw InvalidArgument("{}: ignore_index: expected an int of 64 bits or None, got {}",
                          call.op->name, shown(object));
  }
  return value;
}

double bind_number(py::handle object, const char* argument, const char* expected,
                   const jit::OpCall& call) {
  const double value = PyFloat_AsDouble(object.ptr());
  if (PyErr_Occurred() == nullptr && !is_bool(object)) return value;
  PyErr_Clear();
  throw InvalidArgument("{}: {}: expected {}, got {}", call.op->name, argument, expected,
                        Py_TYPE(object.ptr())->tp_name);
}

TensorArgument bind_temperature(py::handle object, LogpCallBase& call) {
  const bool is_number = PyFloat_Check(object.ptr()) || PyLong_Check(object.ptr());
  // NumPy scalars and 0-d tensors convert to a number as well.
  const py::object rank = is_number ? py::object() : py::getattr(object, "ndim", py::none());
  const bool has_axes = rank && PyLong_Check(rank.ptr()) && !rank.equal(py::int_(0));
  // A DLPack producer need not tell its rank, nor convert to a number.
  const bool is_producer = rank && rank.is_none() && py::hasattr(object, "__dlpack__");
  if (has_axes || is_producer) {
    return bind_named(object, "temperature", call, call.temperature);
  }
  call.temperature_value = bind_number(object, "temperature", "a number or a tensor [...]", call);
  return {};
}

}  // namespace

LogpArguments bind_logp_arguments(const LogpOptions& options, LogpCallBase& call) {
  LogpArguments bound;
  bound.target = bind_named(options.target, "target", call, call.target);
  bound.mask = bind_named(options.mask, "mask", call, call.mask);
  call.ignore_index = bind_ignore_index(options.ignore_index, call);
  bound.temperature = bind_temperature(options.temperature, call);
  if (!options.softcap.is_none()) {
    call.softcap = bind_number(options.softcap, "softcap", "a number or None", call);
  }
  call.logit_scale = bind_number(options.logit_scale, "logit_scale", "a number", call);
  return bound;
}

bool bind_flag(py::handle object, const char* argument) {
  py::detail::make_caster<bool> flag;
  if (flag.load(object, /*convert=*/true)) return static_cast<bool>(flag);
  throw InvalidArgument("{}: expected True or False, got {}", argument, shown(object));
}

void expect_given(const Tensor& tensor, const char* argument, const jit::OpCall& call) {
  if (tensor.present()) return;
  throw InvalidArgument("{}: {}: expected a tensor, got None", call.op->name, argument);
}

py::object run_logp_forward(LogpCallBase& call, const Framework& framework,
                            std::span<const std::int64_t> row_dims, const LogpResults& wanted) {
  Output outputs[5];
  const auto make = [&](Output& output, Tensor& slot) {
    output = make_output(framework, DType::f32, call.device, row_dims, call.stream);
    slot = output.tensor;
  };
  make(outputs[0], call.log_prob);
  if (wanted.entropy) make(outputs[1], call.entropy);
  if (wanted.lse) make(outputs[2], call.lse);
  if (wanted.saved) make(outputs[3], call.row_max);
  if (wanted.saved) make(outputs[4], call.row_log_sum);
  run_call(call, framework, outputs);
  if (!wanted.entropy && !wanted.lse && !wanted.saved) return outputs[0].object;
  py::tuple results(std::size(outputs));
  for (std::size_t i = 0; i < std::size(outputs); ++i) {
    results[i] = outputs[i].object ? outputs[i].object : py::none();
  }
  return results;
}

LogpBackwardArguments bind_logp_backward(py::handle grad_output, py::handle grad_entropy,
                                         py::handle grad_lse, py::handle row_max,
                                         py::handle row_log_sum, py::handle entropy,
                                         LogpCallBase& call) {
  LogpBackwardArguments bound;
  bound.grad_output = bind_named(grad_output, "grad_output", call, call.grad_output);
  bound.grad_entropy = bind_named(grad_entropy, "grad_entropy", call, call.grad_entropy);
  bound.grad_lse = bind_named(grad_lse, "grad_lse", call, call.grad_lse);
  bound.row_max = bind_named(row_max, "row_max", call, call.row_max);
  bound.row_log_sum = bind_named(row_log_sum, "row_log_sum", call, call.row_log_sum);
  bound.entropy = bind_named(entropy, "entropy", call, call.entropy);
  return bound;
}

}  // namespace rlk::bind
