// SPDX-License-Identifier: Apache-2.0
// Copies of a call's values from a device.
#include "templates/common/host_copy.hpp"

#include "runtime/cuda/launch.hpp"
#include "runtime/error.hpp"

namespace rlk::templates {

using namespace runtime::cuda;

void wait_for_values(Driver& driver, const jit::OpCall& call) {
  const auto stream = static_cast<Stream>(call.stream);
  if (is_capturing(driver, call.device.index, stream)) {
    throw Unsupported(
        "{}: stream: expected no CUDA graph capture with RLK_VALIDATE=sync, which reads "
        "the values of a call, got one",
        call.op->name);
  }
  const DeviceGuard guard(driver, call.device.index);
  driver.check(driver.table().stream_synchronize(stream), "cuStreamSynchronize");
}

HostCopy::HostCopy(Driver& driver, Tensor& tensor) {
  if (!tensor.present() || tensor.num_elements() == 0) return;
  std::int64_t first = 0, last = 0;
  for (int axis = 0; axis < tensor.rank; ++axis) {
    const auto reach = tensor.strides[axis] * (tensor.shape[axis] - 1);
    (reach < 0 ? first : last) += reach;
  }
  const auto item = static_cast<std::int64_t>(size_bytes(tensor.dtype));
  bytes_.resize(static_cast<std::size_t>((last - first + 1) * item));
  const auto from =
      reinterpret_cast<std::uint64_t>(tensor.data) + static_cast<std::uint64_t>(first * item);
  driver.check(driver.table().memcpy_dtoh(bytes_.data(), from, bytes_.size()), "cuMemcpyDtoH");
  tensor.data = bytes_.data() - first * item;
  tensor.device = {};
}

}  // namespace rlk::templates
