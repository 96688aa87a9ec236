// SPDX-License-Identifier: Apache-2.0
// Three ways to read a tensor: DLPack's C exchange API, NumPy's array struct, a DLPack capsule.
#include "python/bind/tensor_argument.hpp"

#include "python/bind/device_array.hpp"
#include "python/bind/dlpack_type.hpp"
#include "python/bind/held_tensor.hpp"

#include <pybind11/numpy.h>

#include <string>

namespace rlk::bind {
namespace {

using namespace dlpack;

DType dtype_of(DLDataType type) {
  if (type.lanes != 1) return DType::other;
  const int code_bits = type.code << 8 | type.bits;
  switch (code_bits) {
    case kDLFloat << 8 | 32:
      return DType::f32;
    case kDLBfloat << 8 | 16:
      return DType::bf16;
    case kDLFloat << 8 | 16:
      return DType::f16;
    case kDLFloat << 8 | 64:
      return DType::f64;
    case kDLBool << 8 | 8:
      return DType::boolean;
    case kDLInt << 8 | 8:
      return DType::i8;
    case kDLInt << 8 | 16:
      return DType::i16;
    case kDLInt << 8 | 32:
      return DType::i32;
    case kDLInt << 8 | 64:
      return DType::i64;
    case kDLUInt << 8 | 8:
      return DType::u8;
    case kDLUInt << 8 | 16:
      return DType::u16;
    case kDLUInt << 8 | 32:
      return DType::u32;
    case kDLUInt << 8 | 64:
      return DType::u64;
    case kDLComplex << 8 | 64:
      return DType::c64;
    case kDLComplex << 8 | 128:
      return DType::c128;
    default:
      return DType::other;
  }
}

void expect_rank(int rank, const ArgumentName& argument) {
  if (rank > k_max_rank) {
    throw InvalidArgument(
        argument.fault(fmt::format("at most {} dimensions", k_max_rank), fmt::format("{}", rank)));
  }
}

[[noreturn]] void throw_without_memory(const ArgumentName& argument) {
  throw InvalidArgument(argument.fault(
      "a tensor with memory",
      "one without: its storage is freed (a sharded parameter must be gathered: with FSDP the call "
      "belongs inside of the forward of the module that holds it) or it is a stand-in such as a "
      "FakeTensor"));
}

Tensor view_of(const DLTensor& source, const ArgumentName& argument) {
  expect_rank(source.ndim, argument);
  Device device{Device::Kind::other, source.device.device_id};
  if (source.device.device_type == kDLCPU || source.device.device_type == kDLCUDAHost) {
    device = {Device::Kind::cpu, 0};
  } else if (source.device.device_type == kDLCUDA || source.device.device_type == kDLCUDAManaged) {
    device.kind = Device::Kind::cuda;
  }
  const std::span shape(source.shape, static_cast<std::size_t>(source.ndim));
  Tensor tensor = dense_tensor(static_cast<std::byte*>(source.data) + source.byte_offset,
                               dtype_of(source.dtype), device, shape);
  if (source.strides != nullptr) std::copy_n(source.strides, source.ndim, tensor.strides.begin());
  if (source.data == nullptr && tensor.num_elements() > 0) throw_without_memory(argument);
  return tensor;
}

// What is looked up once a type.
struct KnownType {
  PyTypeObject* type = nullptr;
  const DLPackExchangeAPI* api = nullptr;
  Holder holder = Holder::none;
};

// Guarded by the GIL.
KnownType known_type(PyTypeObject* type) {
  static KnownType known[4];  // torch.Tensor, torch.nn.Parameter and a few subclasses
  static int next = 0;
  for (const KnownType& entry : known) {
    if (entry.type == type) return entry;
  }
  const DLPackExchangeAPI* api = nullptr;
  const auto capsule = py::reinterpret_steal<py::object>(
      PyObject_GetAttrString(reinterpret_cast<PyObject*>(type), "__dlpack_c_exchange_api__"));
  if (capsule && PyCapsule_IsValid(capsule.ptr(), "dlpack_exchange_api")) {
    api = static_cast<const DLPackExchangeAPI*>(
        PyCapsule_GetPointer(capsule.ptr(), "dlpack_exchange_api"));
    // A newer major version may chain to the one whose layout we know.
    while (api != nullptr && api->version.major > 1) api = api->prev_api;
    if (api != nullptr && api->dltensor_from_py_object_no_sync == nullptr) api = nullptr;
  }
  PyErr_Clear();
  Py_INCREF(
      reinterpret_cast<PyObject*>(type));  // the cache holds the type, so no address is reused
  Py_XDECREF(reinterpret_cast<PyObject*>(known[next].type));
  const KnownType found{type, api, api == nullptr ? Holder::none : holder_of(type)};
  known[next] = found;
  next = (next + 1) % 4;
  return found;
}

// The reason that a framework gives, without its C++ stack trace.
std::string first_line(const py::error_already_set& error) {
  const auto text = py::reinterpret_steal<py::object>(PyObject_Str(error.value().ptr()));
  if (!text) {
    PyErr_Clear();
    return py::str(error.type().attr("__name__"));
  }
  std::string reason = py::str(text);
  reason.resize(std::min(reason.find('\n'), reason.size()));
  return reason;
}

constexpr std::string_view k_dtypes =
    "float32, bfloat16 or float16 (target and mask: integers or bool)";

// A sparse or meta tensor, or one of a type that DLPack does not know.
[[noreturn]] void throw_not_readable(py::handle object, const ArgumentName& argument) {
  const py::error_already_set error;
  throw InvalidArgument(
      argument.fault("a dense tensor in memory, of a dtype that DLPack knows",
                     fmt::format("{} ({})", Py_TYPE(object.ptr())->tp_name, first_line(error))));
}

DType numpy_dtype(const py::dtype& dtype) {
  const char order = dtype.byteorder();
  if (order != '=' && order != '|' && order != '<') return DType::other;
  const auto bytes = dtype.itemsize();
  switch (dtype.kind()) {
    case 'f':
      return bytes == 4   ? DType::f32
             : bytes == 2 ? DType::f16
             : bytes == 8 ? DType::f64
                          : DType::other;
    case 'c':
      return bytes == 8 ? DType::c64 : bytes == 16 ? DType::c128 : DType::other;
    case 'b':
      return DType::boolean;
    case 'i':
      return bytes == 1   ? DType::i8
             : bytes == 2 ? DType::i16
             : bytes == 4 ? DType::i32
                          : DType::i64;
    case 'u':
      return bytes == 1   ? DType::u8
             : bytes == 2 ? DType::u16
             : bytes == 4 ? DType::u32
                          : DType::u64;
    default:  // ml_dtypes registers bfloat16 as a void-like type
      return bytes == 2 && py::str(dtype.attr("name")).equal(py::str("bfloat16")) ? DType::bf16
                                                                                  : DType::other;
  }
}

// A subclass of NumPy's whose values are not all there.
bool is_masked(const py::array& array) {
  if (Py_TYPE(array.ptr()) == py::detail::npy_api::get().PyArray_Type_) return false;
  return py::isinstance(array, py::module_::import("numpy.ma").attr("MaskedArray"));
}

TensorArgument bind_numpy(py::array array, const ArgumentName& argument) {
  if (is_masked(array)) {
    throw InvalidArgument(
        argument.fault("an array without a mask of its own", Py_TYPE(array.ptr())->tp_name));
  }
  const DType dtype = numpy_dtype(array.dtype());
  expect_rank(static_cast<int>(array.ndim()), argument);
  const auto item_bytes = static_cast<py::ssize_t>(size_bytes(dtype));
  bool by_element = true;
  for (py::ssize_t axis = 0; axis < array.ndim() && item_bytes > 0; ++axis) {
    by_element = by_element && array.strides(axis) % item_bytes == 0;
  }
  py::object owner;
  if (item_bytes > 0 &&
      (!by_element || reinterpret_cast<std::uintptr_t>(array.data()) % item_bytes)) {
    // A field of a record array or an odd buffer: no view in whole elements exists.
    owner = array.attr("copy")();
    array = py::reinterpret_borrow<py::array>(owner);
  }
  const bool is_writable = array.writeable() && !owner;
  Tensor tensor{const_cast<void*>(array.data()), dtype, {}, static_cast<int>(array.ndim()), {}, {}};
  for (int axis = 0; axis < tensor.rank; ++axis) {
    tensor.shape[axis] = array.shape(axis);
    tensor.strides[axis] = item_bytes > 0 ? array.strides(axis) / item_bytes : 0;
  }
  return {tensor, {}, owner, is_writable};
}

// torch's imag() of a conjugate is a view whose sign is still to be applied. No complex type is
// made of bfloat16.
bool is_lazily_negated(py::handle object, DType dtype) {
  if (!is_floating(dtype) || dtype == DType::bf16) return false;
  static PyObject* method = PyUnicode_InternFromString("is_neg");
  const auto answer =
      py::reinterpret_steal<py::object>(PyObject_CallMethodNoArgs(object.ptr(), method));
  if (!answer) PyErr_Clear();  // not torch's
  return answer.ptr() == Py_True;
}

// A view of a freed storage, as FSDP leaves them of a flat parameter, has its offset as address. To
// ask for it takes time: what is small lies in the heap, whose addresses may be low too.
bool is_freed(py::handle object, const Tensor& tensor) {
  constexpr auto k_program = std::uintptr_t{1} << 22;  // nothing is mapped below
  constexpr auto k_maps = std::uintptr_t{1} << 40;     // and large memory lies above
  constexpr std::int64_t k_small_bytes = 1 << 16;
  const auto address = reinterpret_cast<std::uintptr_t>(tensor.data);
  if (address == 0 || address >= k_maps) return false;
  const auto size = static_cast<std::int64_t>(size_bytes(tensor.dtype));
  if (address >= k_program && tensor.num_elements() * size < k_small_bytes) return false;
  static PyObject* method = PyUnicode_InternFromString("storage_offset");
  const auto offset =
      py::reinterpret_steal<py::object>(PyObject_CallMethodNoArgs(object.ptr(), method));
  const std::int64_t bytes = offset ? PyLong_AsLongLong(offset.ptr()) * size : 0;
  if (PyErr_Occurred() != nullptr) PyErr_Clear();  // not torch's
  return tensor.num_elements() > 0 && static_cast<std::uintptr_t>(bytes) == address;
}

// The capsule of a producer, whose values on CUDA are then ready for the stream.
py::object ask_capsule(py::handle object, std::intptr_t stream) {
  py::dict arguments;
  const py::object device = py::getattr(object, "__dlpack_device__", py::none());
  if (!device.is_none()) {
    const py::object type = device()[py::int_(0)];
    const auto is = [&](int code) { return type.equal(py::int_(code)); };
    if (is(kDLCUDA) || is(kDLCUDAManaged)) arguments["stream"] = stream;
  }
  const py::object produce = object.attr("__dlpack__");
  try {
    return produce(**arguments, py::arg("max_version") = py::make_tuple(1, 0));
  } catch (py::error_already_set& error) {
    if (!error.matches(PyExc_TypeError)) throw;  // producers of before 1.0 know no max_version
    return produce(**arguments);
  }
}

// DLPack's flags of a capsule.
constexpr std::uint64_t k_read_only_or_copied = 1 | 2;

TensorArgument bind_capsule(py::handle object, const ArgumentName& argument, std::intptr_t stream) {
  if (py::hasattr(object, "requires_grad")) {
    // Over a capsule its results would be NumPy arrays and its gradient lost.
    throw Unsupported(
        argument.fault("torch 2.10 or later (with the DLPack exchange API)",
                       fmt::format("a {} without it", Py_TYPE(object.ptr())->tp_name)));
  }
  py::object capsule;
  try {
    capsule = ask_capsule(object, stream);
  } catch (py::error_already_set& error) {
    if (!error.matches(PyExc_Exception)) throw;  // KeyboardInterrupt, SystemExit
    throw InvalidArgument(
        argument.fault("a tensor that DLPack can export",
                       fmt::format("{} ({})", Py_TYPE(object.ptr())->tp_name, first_line(error))));
  }
  // The capsule keeps its name, so its own destructor frees the tensor when `owner` goes.
  if (PyCapsule_IsValid(capsule.ptr(), "dltensor_versioned")) {
    auto* managed = static_cast<DLManagedTensorVersioned*>(
        PyCapsule_GetPointer(capsule.ptr(), "dltensor_versioned"));
    const bool is_writable = (managed->flags & k_read_only_or_copied) == 0;
    if (managed->version.major == 1) {
      return {view_of(managed->dl_tensor, argument), {}, capsule, is_writable};
    }
  } else if (PyCapsule_IsValid(capsule.ptr(), "dltensor")) {
    auto* managed = static_cast<DLManagedTensor*>(PyCapsule_GetPointer(capsule.ptr(), "dltensor"));
    return {view_of(managed->dl_tensor, argument), {}, capsule};
  }
  throw InvalidArgument(argument.fault("a DLPack capsule of version 1 or before", "another"));
}

void raise_allocation_error(void*, const char* kind, const char* message) {
  PyErr_Format(PyExc_RuntimeError, "%s: %s", kind, message);
}

TensorArgument read_tensor(py::handle object, const ArgumentName& argument, std::intptr_t stream) {
  const KnownType known = known_type(Py_TYPE(object.ptr()));
  if (known.holder != Holder::none) {
    const py::object held = held_tensor(object, known.holder, argument);
    TensorArgument found = read_tensor(held, argument, stream);
    if (!found.owner) found.owner = held;
    return found;
  }
  if (const auto* api = known.api) {
    DLTensor source{};
    if (api->dltensor_from_py_object_no_sync(object.ptr(), &source) != 0) {
      throw_not_readable(object, argument);
    }
    const Tensor tensor = view_of(source, argument);
    if (is_freed(object, tensor)) throw_without_memory(argument);
    if (is_lazily_negated(object, tensor.dtype)) {
      // DLPack does not tell that the values in memory have the other sign.
      py::object owner = object.attr("resolve_neg")();
      return {read_tensor(owner, argument, stream).tensor, {api}, owner, false};
    }
    return {tensor, {api}, {}};
  }
  if (py::isinstance<py::array>(object)) {
    return bind_numpy(py::reinterpret_borrow<py::array>(object), argument);
  }
  if (py::hasattr(object, "__dlpack__")) return bind_capsule(object, argument, stream);
  if (py::isinstance(object, py::module_::import("numpy").attr("generic"))) {
    py::array owner = py::array::ensure(object);  // what an index into an array gives
    return {bind_numpy(owner, argument).tensor, {}, owner, false};
  }
  throw InvalidArgument(argument.fault("a torch tensor, NumPy array or DLPack tensor",
                                       Py_TYPE(object.ptr())->tp_name));
}

}  // namespace

TensorArgument bind_tensor(py::handle object, const ArgumentName& argument, std::intptr_t stream) {
  if (object.is_none()) return {};
  TensorArgument bound = read_tensor(object, argument, stream);
  if (bound.tensor.dtype == DType::other) {  // nothing reads it, and here it still has its name
    throw InvalidArgument(
        argument.fault(fmt::format("{}, in the machine's byte order", k_dtypes),
                       py::str(py::getattr(object, "dtype", py::str("another")))));
  }
  return bound;
}

Output make_output(const Framework& framework, DType dtype, Device device,
                   std::span<const std::int64_t> shape, void* stream) {
  if (framework.api == nullptr && device.kind == Device::Kind::cuda) {
    auto array = std::make_shared<DeviceArray>(dtype, device, shape, stream);
    return {py::cast(array), array->tensor(), array.get()};
  }
  if (framework.api == nullptr) {
    py::object type = py::str(std::string(name(dtype)));
    if (dtype == DType::bf16) type = py::module_::import("ml_dtypes").attr("bfloat16");
    py::array array(py::dtype::from_args(type),
                    std::vector<py::ssize_t>(shape.begin(), shape.end()));
    return {array, dense_tensor(array.mutable_data(), dtype, device, shape)};
  }
  std::array<std::int64_t, k_max_rank> dims{};
  std::ranges::copy(shape, dims.begin());
  DLTensor prototype{nullptr,
                     {device.kind == Device::Kind::cuda ? kDLCUDA : kDLCPU, device.index},
                     static_cast<std::int32_t>(shape.size()),
                     dlpack_type(dtype),
                     dims.data(),
                     nullptr,
                     0};
  DLManagedTensorVersioned* managed = nullptr;
  if (framework.api->managed_tensor_allocator(&prototype, &managed, nullptr,
                                              raise_allocation_error) != 0) {
    throw py::error_already_set();
  }
  const Tensor tensor = view_of(managed->dl_tensor, {"", "output"});
  void* object = nullptr;
  if (framework.api->managed_tensor_to_py_object_no_sync(managed, &object) != 0) {
    throw py::error_already_set();
  }
  return {py::reinterpret_steal<py::object>(static_cast<PyObject*>(object)), tensor};
}

}  // namespace rlk::bind
