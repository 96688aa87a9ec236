// SPDX-License-Identifier: Apache-2.0
// What a DTensor's placements say of the part that this rank has.
#include "python/bind/held_tensor.hpp"

#include "python/bind/module.hpp"

namespace rlk::bind {
namespace {

// Whether `type` is a class of a module, or derived from it. Who has a tensor of it has imported
// the module.
bool derives_from(PyTypeObject* type, const char* path, const char* name) {
  PyObject* const module = PyDict_GetItemString(PyImport_GetModuleDict(), path);
  if (module == nullptr) return false;
  const py::object base = py::getattr(py::handle(module), name, py::none());
  return PyType_Check(base.ptr()) &&
         PyType_IsSubtype(type, reinterpret_cast<PyTypeObject*>(base.ptr()));
}

bool is_whole(py::handle placements, py::handle mesh) {
  py::ssize_t axis = 0;
  for (const py::handle placement : placements) {
    const bool is_of_many = mesh.attr("size")(axis++).cast<std::int64_t>() > 1;
    if (is_of_many && !placement.attr("is_replicate")().cast<bool>()) return false;
  }
  return true;
}

}  // namespace

Holder holder_of(PyTypeObject* type) {
  if (derives_from(type, "torch.distributed.tensor", "DTensor")) return Holder::distributed;
  // It has no public name.
  constexpr auto module = "torch.distributed._functional_collectives";
  return derives_from(type, module, "AsyncCollectiveTensor") ? Holder::collective : Holder::none;
}

py::object local_tensor(py::handle object, const ArgumentName& argument) {
  const py::object placements = object.attr("placements"), mesh = object.attr("device_mesh");
  if (!is_whole(placements, mesh)) {
    throw Unsupported(argument.fault(
        "a tensor that each rank has whole",
        fmt::format("a DTensor of placements {} on {} ranks; with FSDP2 call inside of the forward "
                    "of the module that holds it, or after its unshard() in that of the model; "
                    "full_tensor() without grad_placements=[Partial(\"avg\")] leaves the ranks' "
                    "gradients apart",
                    shown(placements), mesh.attr("size")().cast<std::int64_t>())));
  }
  return object.attr("to_local")();
}

py::object held_tensor(py::handle object, Holder holder, const ArgumentName& argument) {
  if (holder == Holder::distributed) return local_tensor(object, argument);
  return object.attr("trigger_wait")();
}

}  // namespace rlk::bind
