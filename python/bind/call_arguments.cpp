// SPDX-License-Identifier: Apache-2.0
// Binds each kind of parameter.
#include "python/bind/call_arguments.hpp"

#include "python/bind/module.hpp"

#include <algorithm>
#include <optional>
#include <string_view>
#include <unordered_map>

namespace rlk::bind {
namespace {

// Names of parameters as Python compares them at once; a table is there for good. Guarded by the
// GIL.
PyObject* key_of(const jit::Parameter& parameter) {
  static std::unordered_map<const jit::Parameter*, PyObject*> keys;
  PyObject*& key = keys[&parameter];
  if (key == nullptr) {
    key = PyUnicode_FromStringAndSize(parameter.name.data(),
                                      static_cast<Py_ssize_t>(parameter.name.size()));
    PyUnicode_InternInPlace(&key);
  }
  return key;
}

ArgumentName name_of(const jit::Parameter& parameter, const jit::OpCall& call) {
  return {call.op->name, parameter.name};
}

// True is 1 to Python: as a number here it is a mistake.
double bind_number(py::handle object, const char* expected, const ArgumentName& name) {
  const double value = PyFloat_AsDouble(object.ptr());
  if (PyErr_Occurred() == nullptr && !is_bool(object)) return value;
  PyErr_Clear();
  throw InvalidArgument(name.fault(expected, Py_TYPE(object.ptr())->tp_name));
}

std::int64_t bind_index(py::handle object, const ArgumentName& name) {
  const auto index = py::reinterpret_steal<py::object>(PyNumber_Index(object.ptr()));
  const auto value = index ? PyLong_AsLongLong(index.ptr()) : -1;
  if (!is_bool(object) && PyErr_Occurred() == nullptr) return value;
  PyErr_Clear();
  throw InvalidArgument(name.fault("an int of 64 bits or None", shown(object)));
}

// Whether it is a tensor with one number per row, and not one number.
bool is_per_row(py::handle object) {
  if (PyFloat_Check(object.ptr()) || PyLong_Check(object.ptr())) return false;
  // NumPy scalars and 0-d tensors convert to a number as well.
  const py::object rank = py::getattr(object, "ndim", py::none());
  // A DLPack producer need not tell its rank, nor convert to a number.
  if (rank.is_none()) return py::hasattr(object, "__dlpack__");
  return PyLong_Check(rank.ptr()) && !rank.equal(py::int_(0));
}

void bind_one(const jit::Parameter& parameter, py::handle object, jit::OpCall& call,
              BoundArguments& bound) {
  void* const field = parameter.field(call);
  const ArgumentName name = name_of(parameter, call);
  const auto bind_into = [&](Tensor& tensor) {
    TensorArgument argument = bind_argument(object, parameter.name, call);
    tensor = argument.tensor;
    if (argument.owner) bound.owners.push_back(std::move(argument.owner));
  };
  switch (parameter.kind) {
    case jit::Kind::tensor:
      if (!object.is_none()) bind_into(*static_cast<Tensor*>(field));
      return;
    case jit::Kind::number:
      *static_cast<double*>(field) = bind_number(object, "a number", name);
      return;
    case jit::Kind::optional_number:
      if (object.is_none()) return;
      *static_cast<std::optional<double>*>(field) = bind_number(object, "a number or None", name);
      return;
    case jit::Kind::number_per_row: {
      auto& number = *static_cast<jit::NumberPerRow*>(field);
      if (is_per_row(object)) return bind_into(number);
      number.value = bind_number(object, "a number or a tensor [...]", name);
      return;
    }
    case jit::Kind::optional_index: {
      auto& index = *static_cast<std::optional<std::int64_t>*>(field);
      index.reset();
      if (!object.is_none()) index = bind_index(object, name);
      return;
    }
    case jit::Kind::word:
      *static_cast<std::int64_t*>(field) = bind_word(object, parameter.words, name);
      return;
    case jit::Kind::count: {
      auto& count = *static_cast<jit::Count*>(field);
      if (object.is_none()) return;
      constexpr auto expected = "an int above 0 or a tensor of one int64";
      if (PyFloat_Check(object.ptr())) throw InvalidArgument(name.fault(expected, shown(object)));
      if (!PyLong_Check(object.ptr())) return bind_into(count);
      count.value = PyLong_AsLongLong(object.ptr());
      if (PyErr_Occurred() != nullptr) PyErr_Clear();
      if (count.value > 0 && !is_bool(object)) return;
      throw InvalidArgument(name.fault(expected, shown(object)));
    }
    case jit::Kind::flag:
      *static_cast<bool*>(field) = bind_flag(object, name);
  }
}

}  // namespace

void bind_parameters(std::span<const jit::Parameter> parameters, const py::dict& arguments,
                     jit::OpCall& call, BoundArguments& bound) {
  for (const jit::Parameter& parameter : parameters) {
    PyObject* const object = PyDict_GetItemWithError(arguments.ptr(), key_of(parameter));
    if (object != nullptr) bind_one(parameter, object, call, bound);
  }
}

BoundArguments bind_call(const jit::Op& op, const py::dict& arguments, jit::OpCall& call) {
  return bind_call(op, op.parameters, arguments, call);
}

BoundArguments bind_call(const jit::Op& op, std::span<const jit::Parameter> parameters,
                         const py::dict& arguments, jit::OpCall& call) {
  static PyObject* const stream_key = PyUnicode_InternFromString("stream");
  PyObject* const given = PyDict_GetItemWithError(arguments.ptr(), stream_key);
  const py::handle stream = given == nullptr ? Py_None : given;
  call.op = &op;
  const jit::Parameter& parameter = parameters.front();
  const ArgumentName name = name_of(parameter, call);
  PyObject* const object = PyDict_GetItemWithError(arguments.ptr(), key_of(parameter));
  TensorArgument first = bind_first(object == nullptr ? Py_None : object, name, stream);
  BoundArguments bound{first.framework, {}};
  if (!first.tensor.present()) throw InvalidArgument(name.fault("a tensor", "None"));
  call.stream = bind_stream(stream, first, name);
  call.device = first.tensor.device;
  *static_cast<Tensor*>(parameter.field(call)) = first.tensor;
  if (first.owner) bound.owners.push_back(std::move(first.owner));
  bind_parameters(parameters.subspan(1), arguments, call, bound);
  return bound;
}

std::int64_t bind_word(py::handle object, std::span<const jit::Word> words,
                       const ArgumentName& name) {
  if (object.is_none()) return 0;
  Py_ssize_t size = 0;
  const char* const data =
      PyUnicode_Check(object.ptr()) ? PyUnicode_AsUTF8AndSize(object.ptr(), &size) : nullptr;
  if (PyErr_Occurred() != nullptr) PyErr_Clear();
  const auto found = std::ranges::find(
      words, std::string_view(data, static_cast<std::size_t>(size)), &jit::Word::word);
  if (found != words.end()) return found->code;
  std::string expected;
  for (const jit::Word& word : words) {
    expected += (expected.empty() ? "" : ", ") + std::string(word.word);
  }
  throw InvalidArgument(name.fault(std::move(expected), shown(object)));
}

bool is_bool(py::handle object) {
  return PyBool_Check(object.ptr()) ||
         std::string_view(Py_TYPE(object.ptr())->tp_name).starts_with("numpy.bool");
}

bool bind_flag(py::handle object, const ArgumentName& name) {
  if (object.ptr() == Py_True) return true;
  if (object.ptr() == Py_False) return false;
  if (is_bool(object)) return PyObject_IsTrue(object.ptr()) == 1;
  throw InvalidArgument(name.fault("True or False", shown(object)));
}

bool flag_of(const py::dict& arguments, const char* name, const jit::OpCall& call) {
  PyObject* const object = PyDict_GetItemString(arguments.ptr(), name);
  return object != nullptr && bind_flag(object, {call.op->name, name});
}

}  // namespace rlk::bind
