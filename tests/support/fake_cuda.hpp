// SPDX-License-Identifier: Apache-2.0
// A libcuda.so.1 without a GPU: records what is asked of it and fails when told to. Like the real
// one it takes no PTX (".version 8.8") newer than itself, and no ".target sm_100" or "sm_120"
// before CUDA 12.8.
#pragma once

#include "runtime/cuda/driver_api.hpp"

#include <dlfcn.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <stdexcept>
#include <string>
#include <vector>

namespace rlk::test {

struct FakeCuda {
  struct Launch {
    std::string kernel;
    int device = -1;  // of the context that was current
    unsigned grid_x = 0, block_x = 0, shared_bytes = 0;
    runtime::cuda::Stream stream = nullptr;
    void** arguments = nullptr;               // gone after the launch
    std::vector<std::byte> first_argument{};  // as far as argument_bytes said
    unsigned cluster = 1;
    unsigned grid_y = 1;
    bool overlaps = false;
  };
  struct Memset {
    std::uint64_t address = 0;
    unsigned value = 0;
    std::size_t bytes = 0;
    runtime::cuda::Stream stream = nullptr;
  };
  struct TensorMap {
    void* data = nullptr;
    std::uint64_t num_cols = 0, num_rows = 0, pitch_bytes = 0;
    std::uint32_t box_rows = 0;
  };
  struct Attribute {
    std::string kernel;
    int device, attribute, value;
  };

  int version = 12080;
  std::vector<std::pair<int, int>> capabilities{{9, 0}, {9, 0}};  // one a device
  std::string missing_function;
  // The fail_at-th call from now on of this function, counted from 1, gives fail_code.
  std::string fail_call;
  int fail_at = 1;
  runtime::cuda::Result fail_code = 0;
  std::string load_log;
  runtime::cuda::CaptureStatus capture{};
  int static_shared_bytes = 1024;
  bool fills_memory = true;  // false: a memset is only noted, its address means nothing
  // Bytes of a kernel's first argument to keep.
  std::function<std::size_t(const std::string& kernel)> argument_bytes;

  // In the place of the kernel, and of the card's clock.
  std::function<void(const Launch&)> on_launch;
  std::function<float()> elapsed_ms;

  std::map<std::string, int> num_calls;
  std::vector<std::string> order;  // of calls
  std::vector<Launch> launches;
  std::vector<Memset> memsets;
  std::vector<TensorMap> tensor_maps;
  std::vector<int> synchronized;  // devices
  std::vector<Attribute> attributes;
  std::vector<runtime::cuda::CaptureMode> load_modes;  // in force at loads and preparations
  std::vector<std::string> asked;                      // of cuGetProcAddress
  int asked_version = 0;
  int num_loaded = 0;  // libraries at this moment

  // Devices of the calling thread's pushed contexts; k_own_context is one of the caller's making,
  // on device 1.
  std::vector<int>* (*contexts)() = nullptr;
  static constexpr int k_own_context = 1001;
};

// The one in the fake library, which must be open or be opened by this.
inline FakeCuda& fake_cuda(const char* library = RLK_FAKE_CUDA) {
  void* opened = dlopen(library, RTLD_NOW | RTLD_LOCAL);
  void* get = opened != nullptr ? dlsym(opened, "rlk_fake_cuda") : nullptr;
  if (get == nullptr) throw std::runtime_error("no fake libcuda");
  return *reinterpret_cast<FakeCuda* (*)()>(get)();
}

}  // namespace rlk::test
