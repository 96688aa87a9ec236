// SPDX-License-Identifier: Apache-2.0
// Copies the small tensors of a call to the host, where the CPU's own check reads them.
#include "templates/common/logp/validate_cuda.hpp"

#include "runtime/cuda/launch.hpp"
#include "templates/common/logp/active_rows.hpp"

#include <algorithm>
#include <vector>

namespace rlk {
namespace {

using namespace runtime::cuda;

// Bytes from the first to the last element, in place of the tensor's memory.
class HostCopy {
 public:
  HostCopy(const Driver& driver, Tensor& tensor) {
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

 private:
  std::vector<std::byte> bytes_;
};

}  // namespace

void validate_logp_cuda(Driver& driver, const LogpCallBase& call, const Tensor& matrix,
                        std::int64_t vocab) {
  const auto stream = static_cast<Stream>(call.stream);
  if (is_capturing(driver, call.device.index, stream)) {
    throw Unsupported(
        "{}: stream: expected no CUDA graph capture with RLK_VALIDATE=sync, which reads "
        "the values of a call, got one",
        call.op->name);
  }
  const DeviceGuard guard(driver, call.device.index);
  driver.check(driver.table().stream_synchronize(stream), "cuStreamSynchronize");
  LogpCallBase host = call;
  const HostCopy target(driver, host.target), mask(driver, host.mask),
      temperature(driver, host.temperature);
  host.pass = jit::Pass::fwd;  // grad_output may have any value
  active_rows(host, matrix, vocab);
}

}  // namespace rlk
