// SPDX-License-Identifier: Apache-2.0
// Memory from the driver's pool, an event that says when it is written, and DLPack capsules of it.
#include "python/bind/device_array.hpp"

#include "python/bind/dlpack_type.hpp"
#include "python/bind/module.hpp"

#include <array>

namespace rlk::bind {

using namespace runtime::cuda;
using namespace dlpack;

struct DeviceArray::Memory {
  int device = 0;
  std::uint64_t address = 0;
  Event written = nullptr;

  Memory() = default;
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  ~Memory() {
    Driver* driver = Driver::find();
    if (driver == nullptr) return;
    try {
      const DeviceGuard guard(*driver, device);
      // Not in stream order: a consumer may have used it on any stream.
      if (address != 0) driver->table().mem_free(address);
      if (written != nullptr) driver->table().event_destroy(written);
    } catch (const Error&) {  // the driver is shutting down, and has freed it
    }
  }
};

namespace {

// What a consumer holds: the capsule's tensor with its shape, and the memory.
template <class Managed>
struct Exported {
  Managed managed{};
  std::array<std::int64_t, k_max_rank> shape{}, strides{};
  std::shared_ptr<const void> memory;
};

template <class Managed>
py::object export_as(const Tensor& tensor, std::shared_ptr<const void> memory, const char* name) {
  auto exported = std::make_unique<Exported<Managed>>();
  exported->shape = tensor.shape;
  exported->strides = tensor.strides;
  exported->memory = std::move(memory);
  DLTensor& to = exported->managed.dl_tensor;
  to.data = tensor.data;
  to.device = {kDLCUDA, tensor.device.index};
  to.ndim = tensor.rank;
  to.dtype = dlpack_type(tensor.dtype);
  to.shape = exported->shape.data();
  to.strides = exported->strides.data();
  exported->managed.manager_ctx = exported.get();
  exported->managed.deleter = [](Managed* managed) {
    delete static_cast<Exported<Managed>*>(managed->manager_ctx);
  };
  if constexpr (std::is_same_v<Managed, DLManagedTensorVersioned>) {
    exported->managed.version = {1, 0};
  }
  // A consumer renames the capsule and calls the deleter itself.
  PyObject* capsule = PyCapsule_New(&exported->managed, name, [](PyObject* self) {
    constexpr bool is_versioned = std::is_same_v<Managed, DLManagedTensorVersioned>;
    constexpr const char* own = is_versioned ? "dltensor_versioned" : "dltensor";
    if (PyCapsule_IsValid(self, own) == 0) return;
    auto* managed = static_cast<Managed*>(PyCapsule_GetPointer(self, own));
    managed->deleter(managed);
  });
  if (capsule == nullptr) throw py::error_already_set();
  exported.release();
  return py::reinterpret_steal<py::object>(capsule);
}

std::string shape_text(const DeviceArray& array) { return rlk::text(array.tensor().dims()); }

}  // namespace

DeviceArray::DeviceArray(DType dtype, Device device, std::span<const std::int64_t> shape,
                         void* stream)
    : memory_(std::make_shared<Memory>()) {
  Driver& driver = Driver::instance();
  memory_->device = device.index;
  tensor_ = dense_tensor(nullptr, dtype, device, shape);
  const auto bytes = static_cast<std::size_t>(std::max<std::int64_t>(tensor_.num_elements(), 1)) *
                     size_bytes(dtype);
  const DeviceGuard guard(driver, device.index);
  driver.check(
      driver.table().mem_alloc_async(&memory_->address, bytes, static_cast<Stream>(stream)),
      "cuMemAllocAsync");
  constexpr unsigned k_without_timing = 2;
  driver.check(driver.table().event_create(&memory_->written, k_without_timing), "cuEventCreate");
  tensor_.data = reinterpret_cast<void*>(memory_->address);
}

DeviceArray DeviceArray::at(std::int64_t index) const {
  // Iteration ends by it.
  if (tensor_.rank == 0 || index < 0 || index >= tensor_.shape[0]) throw py::index_error();
  DeviceArray part = *this;
  part.tensor_ = dense_tensor(nullptr, tensor_.dtype, tensor_.device, tensor_.dims().subspan(1));
  const auto bytes = static_cast<std::int64_t>(size_bytes(tensor_.dtype));
  part.tensor_.data = static_cast<std::byte*>(tensor_.data) + index * tensor_.strides[0] * bytes;
  return part;
}

void DeviceArray::finish(void* stream) {
  Driver& driver = Driver::instance();
  const DeviceGuard guard(driver, memory_->device);
  driver.check(driver.table().event_record(memory_->written, static_cast<Stream>(stream)),
               "cuEventRecord");
}

py::object DeviceArray::to_dlpack(const py::object& stream, const py::object& max_version,
                                  const py::object& device, const py::object& copy) const {
  if (!device.is_none() && !device.equal(py::make_tuple(int{kDLCUDA}, memory_->device))) {
    py::set_error(PyExc_BufferError, "rlk.Array: dl_device: expected its own device or None");
    throw py::error_already_set();
  }
  if (!copy.is_none() && py::cast<bool>(copy)) {
    py::set_error(PyExc_BufferError, "rlk.Array: copy: expected False or None");
    throw py::error_already_set();
  }
  // None: the legacy default stream; -1: the consumer synchronizes by itself.
  const auto handle = stream.is_none() ? std::intptr_t{1} : py::cast<std::intptr_t>(stream);
  if (handle != -1) {
    Driver& driver = Driver::instance();
    const DeviceGuard guard(driver, memory_->device);
    driver.check(
        driver.table().stream_wait_event(reinterpret_cast<Stream>(handle), memory_->written, 0),
        "cuStreamWaitEvent");
  }
  const bool versioned = !max_version.is_none() && py::cast<int>(max_version[py::int_(0)]) >= 1;
  return versioned ? export_as<DLManagedTensorVersioned>(tensor_, memory_, "dltensor_versioned")
                   : export_as<DLManagedTensor>(tensor_, memory_, "dltensor");
}

void bind_device_array(py::module_& module) {
  py::class_<DeviceArray, std::shared_ptr<DeviceArray>>(module, "Array",
                                                        R"(A result in the memory of a CUDA device.

Given to callers whose tensors come from CuPy, JAX or another DLPack producer. Take it with
`cupy.from_dlpack(array)`, `jax.dlpack.from_dlpack(array)` or `torch.from_dlpack(array)`: no copy
is made, and the consumer's stream waits for the result. `array[i]` is a part of it.)")
      .def_property_readonly("shape",
                             [](const DeviceArray& array) {
                               const auto dims = array.tensor().dims();
                               py::tuple shape(dims.size());
                               for (std::size_t i = 0; i < dims.size(); ++i) shape[i] = dims[i];
                               return shape;
                             })
      .def_property_readonly(
          "dtype", [](const DeviceArray& array) { return std::string(name(array.tensor().dtype)); })
      .def_property_readonly("device",
                             [](const DeviceArray& array) { return text(array.tensor().device); })
      .def("__getitem__", &DeviceArray::at, py::arg("index"))
      .def("__dlpack__", &DeviceArray::to_dlpack, py::kw_only(), py::arg("stream") = py::none(),
           py::arg("max_version") = py::none(), py::arg("dl_device") = py::none(),
           py::arg("copy") = py::none())
      .def("__dlpack_device__",
           [](const DeviceArray& array) {
             return py::make_tuple(int{kDLCUDA}, array.tensor().device.index);
           })
      .def("__repr__", [](const DeviceArray& array) {
        return fmt::format("rlk.Array(shape={}, dtype={}, device={})", shape_text(array),
                           name(array.tensor().dtype), text(array.tensor().device));
      });
}

}  // namespace rlk::bind
