// SPDX-License-Identifier: Apache-2.0
// The ops' tables of parameters, what a call must ask torch first, and torch.
#include "jit/op.hpp"
#include "python/bind/held_tensor.hpp"
#include "python/bind/module.hpp"
#include "templates/registry.hpp"

#include <pybind11/pybind11.h>

#include <cmath>

namespace rlk::bind {
namespace {

py::object default_of(const jit::Parameter& parameter) {
  switch (parameter.kind) {
    case jit::Kind::number:
    case jit::Kind::number_per_row:
      return py::float_(parameter.by_default);
    case jit::Kind::optional_index:
      if (std::isnan(parameter.by_default)) return py::none();
      return py::int_(static_cast<std::int64_t>(parameter.by_default));
    case jit::Kind::flag:
      return py::bool_(false);
    default:
      return py::none();
  }
}

py::list ops() {
  py::list names;
  for (const jit::Op* op : templates::ops()) names.append(py::str(std::string(op->name)));
  return names;
}

// (name, kind, default) of each parameter of the op.
py::list parameters(const std::string& op_name) {
  py::list all;
  for (const jit::Parameter& parameter : templates::find_op(op_name)->parameters) {
    all.append(py::make_tuple(py::str(std::string(parameter.name)),
                              py::str(std::string(jit::name(parameter.kind))),
                              default_of(parameter)));
  }
  return all;
}

// A module that is imported, or that another thread is importing just now; not waited for.
py::object imported(const char* path) {
  PyObject* const module = PyDict_GetItemString(PyImport_GetModuleDict(), path);
  return py::reinterpret_borrow<py::object>(module == nullptr ? Py_None : module);
}

// A member of one of torch's modules, once it is there; a new reference that stays.
PyObject* torch_member(const char* path, const char* name) {
  PyObject* const member = PyObject_GetAttrString(imported(path).ptr(), name);
  if (member == nullptr) PyErr_Clear();
  return member;
}

// The module torch where it is imported and complete, else None. Who has none of its tensors need
// not wait for it.
py::object ready_torch() {
  py::object torch = imported("torch");
  const py::object spec = py::getattr(torch, "__spec__", py::none());
  if (py::getattr(spec, "_initializing", py::none()).ptr() == Py_True) return py::none();
  for (const char* name : {"Tensor", "as_tensor", "from_dlpack", "cuda"}) {
    if (!py::hasattr(torch, name)) return py::none();  // one that stands in for it
  }
  return torch;
}

// torch.Tensor, once torch is imported; null before.
PyTypeObject* tensor_type() {
  static PyObject* type = nullptr;
  if (type == nullptr) type = torch_member("torch", "Tensor");
  return reinterpret_cast<PyTypeObject*>(type);
}

// Adds the arguments that are torch tensors to one dictionary, the others to another.
void split_tensors(const py::dict& arguments, const py::dict& tensors, const py::dict& others) {
  PyObject *name = nullptr, *value = nullptr;
  Py_ssize_t at = 0;
  while (PyDict_Next(arguments.ptr(), &at, &name, &value)) {
    const py::dict& into = PyObject_TypeCheck(value, tensor_type()) ? tensors : others;
    if (PyDict_SetItem(into.ptr(), name, value) != 0) throw py::error_already_set();
  }
}

// Whether calls of torch pass through what sees operators alone: a mode such as FakeTensorMode, a
// transform of torch.func or torch.jit.trace. These have no public names; a torch without them is
// taken to be in none.
bool is_in_mode() {
  static PyObject* num_modes = nullptr;
  static PyObject* has_transforms = nullptr;
  static PyObject* is_tracing = nullptr;
  if (num_modes == nullptr) num_modes = torch_member("torch._C", "_len_torch_dispatch_stack");
  if (has_transforms == nullptr) {
    has_transforms = torch_member("torch._C", "_are_functorch_transforms_active");
  }
  if (is_tracing == nullptr) is_tracing = torch_member("torch._C", "_is_tracing");
  for (PyObject* const question : {num_modes, has_transforms, is_tracing}) {
    if (question == nullptr) continue;
    const auto answer = py::reinterpret_steal<py::object>(PyObject_CallNoArgs(question));
    if (!answer) throw py::error_already_set();
    if (PyObject_IsTrue(answer.ptr()) == 1) return true;
  }
  return false;
}

// Whether something sees this call as operators alone, and one of the arguments is a torch tensor.
bool is_watched(const py::dict& arguments) {
  if (tensor_type() == nullptr || !is_in_mode()) return false;
  PyObject *name = nullptr, *value = nullptr;
  Py_ssize_t at = 0;
  while (PyDict_Next(arguments.ptr(), &at, &name, &value)) {
    if (PyObject_TypeCheck(value, tensor_type())) return true;
  }
  return false;
}

// Whether one of the arguments is a torch tensor that needs a gradient here, may carry a tangent,
// or is seen by a mode or transform. A call with torch tensors has imported torch; rlk never does.
bool needs_autograd(const py::dict& arguments) {
  static PyObject* is_grad_enabled = nullptr;
  static PyObject* forward_ad = nullptr;
  static PyObject* const level_name = PyUnicode_InternFromString("_current_level");
  static PyObject* const requires_grad = PyUnicode_InternFromString("requires_grad");
  if (forward_ad == nullptr) {
    if (tensor_type() == nullptr) return false;
    if (is_grad_enabled == nullptr) is_grad_enabled = torch_member("torch", "is_grad_enabled");
    if (is_grad_enabled == nullptr) return false;
    forward_ad = torch_member("torch.autograd", "forward_ad");
    if (forward_ad == nullptr) return false;
  }
  // Within forward_ad.dual_level() or torch.func.jvp a tensor may carry a tangent. The level has no
  // public name; a torch without it is taken to be outside.
  const auto level = py::reinterpret_steal<py::object>(PyObject_GetAttr(forward_ad, level_name));
  if (!level) PyErr_Clear();
  const bool may_be_more = (level && PyLong_AsLong(level.ptr()) >= 0) || is_in_mode();
  if (!may_be_more) {
    const auto enabled = py::reinterpret_steal<py::object>(PyObject_CallNoArgs(is_grad_enabled));
    if (!enabled) throw py::error_already_set();
    if (enabled.ptr() != Py_True) return false;
  }
  PyObject *name = nullptr, *value = nullptr;
  Py_ssize_t at = 0;
  while (PyDict_Next(arguments.ptr(), &at, &name, &value)) {
    if (!PyObject_TypeCheck(value, tensor_type())) continue;
    if (may_be_more) return true;
    const auto needs = py::reinterpret_steal<py::object>(PyObject_GetAttr(value, requires_grad));
    if (!needs) throw py::error_already_set();
    if (needs.ptr() == Py_True) return true;
  }
  return false;
}

// Whether torch casts operands of products here, on some device.
bool is_autocast_enabled() {
  static PyObject* is_any = nullptr;  // one call for all devices, which has no public name
  static PyObject* is_enabled = nullptr;
  if (is_enabled == nullptr) {
    if (tensor_type() == nullptr) return false;
    is_enabled = torch_member("torch", "is_autocast_enabled");
    if (is_enabled == nullptr) return false;
    is_any = torch_member("torch._C", "_is_any_autocast_enabled");
  }
  const auto is_true = [](PyObject* result) {
    const auto enabled = py::reinterpret_steal<py::object>(result);
    if (!enabled) throw py::error_already_set();
    return enabled.ptr() == Py_True;
  };
  if (is_any != nullptr) return is_true(PyObject_CallNoArgs(is_any));
  return is_true(PyObject_CallFunction(is_enabled, "s", "cuda")) ||
         is_true(PyObject_CallFunction(is_enabled, "s", "cpu"));
}

}  // namespace

void bind_parameter_tables(py::module_& module) {
  module.def("ops", ops);
  module.def("parameters", parameters, py::arg("op"));
  module.def("needs_autograd", needs_autograd, py::arg("arguments"));
  module.def("is_autocast_enabled", is_autocast_enabled);
  module.def("is_watched", is_watched, py::arg("arguments"));
  module.def("ready_torch", ready_torch);
  module.def(
      "local_tensor",
      [](const std::string& op, const std::string& argument, const py::object& tensor) {
        return local_tensor(tensor, {op, argument});
      },
      py::arg("op"), py::arg("argument"), py::arg("tensor"));
  module.def("split_tensors", split_tensors, py::arg("arguments"), py::arg("tensors"),
             py::arg("others"));
}

}  // namespace rlk::bind
