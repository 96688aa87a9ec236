// SPDX-License-Identifier: Apache-2.0
// A libcuda.so.1 without a GPU: records what is asked of it and fails when told to.
#pragma once

#include "runtime/cuda/driver_api.hpp"

#include <dlfcn.h>

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
    void** arguments = nullptr;
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

  std::map<std::string, int> num_calls;
  std::vector<std::string> order;  // of calls
  std::vector<Launch> launches;
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
