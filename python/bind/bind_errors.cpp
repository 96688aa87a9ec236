// SPDX-License-Identifier: Apache-2.0
// rlk's errors as the Python classes of rlk.errors.
#include "python/bind/module.hpp"
#include "runtime/error.hpp"

#include <pybind11/pybind11.h>

namespace rlk::bind {
namespace {

void set_error(const char* class_name, const Error& error) {
  const auto errors = py::module_::import("rlk.errors");
  py::object content = py::str(error.what());
  if (const Fault* fault = error.fault()) {
    content = errors.attr("Fault")(fault->op, fault->argument, fault->expected, fault->got);
  }
  const py::object type = errors.attr(class_name);
  PyErr_SetObject(type.ptr(), type(content).ptr());
}

std::string fault_text(std::string op, std::string argument, std::string expected,
                       std::string got) {
  return Fault{std::move(op), std::move(argument), std::move(expected), std::move(got)}.text();
}

}  // namespace

std::string shown(py::handle object) {
  const auto text = py::reinterpret_steal<py::object>(PyObject_Repr(object.ptr()));
  if (text) return text.cast<std::string>();
  PyErr_Clear();
  return Py_TYPE(object.ptr())->tp_name;
}

void bind_errors(py::module_& module) {
  module.def("fault_text", fault_text, py::arg("op"), py::arg("argument"), py::arg("expected"),
             py::arg("got"));
  // pybind11 takes a function of this signature alone.
  // NOLINTNEXTLINE(performance-unnecessary-value-param)
  py::register_local_exception_translator([](std::exception_ptr pending) {
    try {
      if (pending) std::rethrow_exception(pending);
    } catch (const InvalidArgument& error) {
      set_error("InvalidArgument", error);
    } catch (const Unsupported& error) {
      set_error("Unsupported", error);
    } catch (const CompileError& error) {
      set_error("CompileError", error);
    } catch (const DriverError& error) {
      set_error("DriverError", error);
    } catch (const LoadError& error) {
      set_error("LoadError", error);
    } catch (const Error& error) {
      set_error("Error", error);
    }
  });
  module.attr("__version__") = RLK_VERSION;
}

}  // namespace rlk::bind
