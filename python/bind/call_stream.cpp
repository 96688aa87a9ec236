// SPDX-License-Identifier: Apache-2.0
// Which stream a call runs on, and running it there.
#include "python/bind/call_stream.hpp"

#include "jit/dispatcher.hpp"
#include "python/bind/call_memory.hpp"
#include "python/bind/module.hpp"
#include "python/bind/without_gil.hpp"
#include "runtime/cuda/driver.hpp"
#include "runtime/error.hpp"

namespace rlk::bind {

TensorArgument bind_first(py::handle object, const ArgumentName& name, py::handle stream) {
  std::intptr_t handle = k_default_stream;
  if (PyLong_Check(stream.ptr())) handle = PyLong_AsLongLong(stream.ptr());
  if (PyErr_Occurred() != nullptr) {  // of too many bits: bind_stream refuses it
    PyErr_Clear();
    handle = k_default_stream;
  }
  return bind_tensor(object, name, handle);
}

void* bind_stream(py::handle object, const TensorArgument& first, const ArgumentName& name) {
  const Device device = first.tensor.device;
  if (device.kind == Device::Kind::other) {  // before it is compared with another argument's
    throw Unsupported(ArgumentName{name.op, "device"}.fault("cpu or cuda", text(device)));
  }
  const bool is_cuda = device.kind == Device::Kind::cuda;
  const bool has_current = is_cuda && first.framework.api != nullptr &&
                           first.framework.api->current_work_stream != nullptr;
  if (!object.is_none() && (!is_cuda || has_current)) {
    throw InvalidArgument(ArgumentName{name.op, "stream"}.fault(
        is_cuda
            ? fmt::format("None (the current stream of {{{}}}'s framework is used)", name.argument)
            : "None for tensors of the CPU",
        shown(object)));
  }
  if (has_current) {
    void* stream = nullptr;
    if (first.framework.api->current_work_stream(dlpack::kDLCUDA, first.tensor.device.index,
                                                 &stream)) {
      throw py::error_already_set();
    }
    return stream;
  }
  std::string why;
  if (is_cuda && runtime::cuda::Driver::find(&why) == nullptr) {
    throw Unsupported(ArgumentName{name.op, "device"}.fault(
        "a CUDA driver for " + text(first.tensor.device), fmt::format("none ({})", why)));
  }
  if (object.is_none()) return is_cuda ? reinterpret_cast<void*>(k_default_stream) : nullptr;
  const auto stream = PyLong_Check(object.ptr()) ? PyLong_AsLongLong(object.ptr()) : 0;
  if (PyErr_Occurred() != nullptr) PyErr_Clear();
  if (stream <= 0) {
    throw InvalidArgument(
        ArgumentName{name.op, "stream"}.fault("a CUDA stream as an int or None", shown(object)));
  }
  return reinterpret_cast<void*>(stream);
}

TensorArgument bind_argument(py::handle object, std::string_view argument,
                             const jit::OpCall& call) {
  // DLPack has no 0: it could mean either default stream.
  const auto stream = reinterpret_cast<std::intptr_t>(call.stream);
  return bind_tensor(object, {call.op->name, argument}, stream == 0 ? k_default_stream : stream);
}

void run_call(jit::OpCall& call, const Framework& framework, std::span<const Output> outputs) {
  std::unique_ptr<runtime::Workspace> workspace;
  if (call.device.kind == Device::Kind::cuda) {
    workspace = make_workspace(framework, call.device, call.stream);
  }
  call.workspace = workspace.get();
  without_gil([&] {
    jit::Dispatcher::instance().run(call);
    workspace.reset();
  });
  for (const Output& output : outputs) {
    if (output.array != nullptr) output.array->finish(call.stream);
  }
}

py::tuple objects_of(std::span<const Output> outputs) {
  py::tuple objects(outputs.size());
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    objects[i] = outputs[i].object ? outputs[i].object : py::none();
  }
  return objects;
}

py::tuple explain_call(const jit::OpCall& call) {
  jit::Explanation found;
  without_gil([&] { found = jit::Dispatcher::instance().explain(call); });
  return py::make_tuple(found.kernel, found.key, found.variant, found.source, found.reason);
}

}  // namespace rlk::bind
