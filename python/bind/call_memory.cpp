// SPDX-License-Identifier: Apache-2.0
// Two sources of workspace: DLPack's exchange API and the driver.
#include "python/bind/call_memory.hpp"

#include "runtime/cuda/driver.hpp"

#include <string>
#include <vector>

namespace rlk::bind {
namespace {

using namespace dlpack;

// The framework's allocator is in the order of its current stream, which is the call's.
class FrameworkWorkspace final : public runtime::Workspace {
 public:
  FrameworkWorkspace(const DLPackExchangeAPI* api, int device) : api_(api), device_(device) {}
  FrameworkWorkspace(const FrameworkWorkspace&) = delete;
  FrameworkWorkspace& operator=(const FrameworkWorkspace&) = delete;
  ~FrameworkWorkspace() override {
    for (auto* tensor : tensors_) tensor->deleter(tensor);
  }

  void* allocate(std::size_t bytes) override {
    auto size = static_cast<std::int64_t>(bytes);
    DLTensor prototype{nullptr, {kDLCUDA, device_}, 1, {kDLUInt, 8, 1}, &size, nullptr, 0};
    DLManagedTensorVersioned* tensor = nullptr;
    std::string reason;
    const auto keep_reason = [](void* context, const char*, const char* text) {
      *static_cast<std::string*>(context) = text;
    };
    if (api_->managed_tensor_allocator(&prototype, &tensor, &reason, keep_reason) != 0) {
      reason.resize(std::min(reason.find('\n'), reason.size()));
      throw DriverError("workspace: expected {} bytes on cuda:{}, got none: {}", bytes, device_,
                        reason);
    }
    tensors_.push_back(tensor);
    return static_cast<std::byte*>(tensor->dl_tensor.data) + tensor->dl_tensor.byte_offset;
  }

 private:
  const DLPackExchangeAPI* api_;
  int device_;
  std::vector<DLManagedTensorVersioned*> tensors_;
};

class DriverWorkspace final : public runtime::Workspace {
 public:
  DriverWorkspace(int device, void* stream)
      : device_(device), stream_(static_cast<runtime::cuda::Stream>(stream)) {}
  DriverWorkspace(const DriverWorkspace&) = delete;
  DriverWorkspace& operator=(const DriverWorkspace&) = delete;
  ~DriverWorkspace() override {
    auto& driver = runtime::cuda::Driver::instance();
    for (const auto address : addresses_) driver.table().mem_free_async(address, stream_);
  }

  void* allocate(std::size_t bytes) override {
    auto& driver = runtime::cuda::Driver::instance();
    const runtime::cuda::DeviceGuard guard(driver, device_);
    std::uint64_t address = 0;
    driver.check(driver.table().mem_alloc_async(&address, bytes, stream_), "cuMemAllocAsync");
    addresses_.push_back(address);
    return reinterpret_cast<void*>(address);
  }

 private:
  int device_;
  runtime::cuda::Stream stream_;
  std::vector<std::uint64_t> addresses_;
};

}  // namespace

std::unique_ptr<runtime::Workspace> make_workspace(const Framework& framework, Device device,
                                                   void* stream) {
  if (framework.api != nullptr) {
    return std::make_unique<FrameworkWorkspace>(framework.api, device.index);
  }
  return std::make_unique<DriverWorkspace>(device.index, stream);
}

}  // namespace rlk::bind
