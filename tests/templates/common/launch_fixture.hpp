// SPDX-License-Identifier: Apache-2.0
// What a launch asks of the driver, for calls of any size: no memory is behind their tensors.
#pragma once

#include "runtime/tensor.hpp"
#include "runtime/workspace.hpp"
#include "templates/common/cuda_memory.hpp"
#include "templates/common/device_errors.hpp"
#include "templates/common/logp/cuda_args.h"
#include "tests/runtime/cuda/cuda_fixture.hpp"

#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

namespace rlk::test {

// Notes what it was asked for and gives one address, behind which there is nothing.
class FakeWorkspace : public runtime::Workspace {
 public:
  static constexpr std::uintptr_t k_address = std::uintptr_t{1} << 46;

  void* allocate(std::size_t bytes) override {
    requests.push_back(bytes);
    if (fails) throw DriverError("out of memory");
    return reinterpret_cast<void*>(k_address);
  }

  std::vector<std::size_t> requests;
  bool fails = false;
};

// A launch, with its only argument.
template <class Args, class Copy = LogpCudaCopy>
struct LaunchedStep {
  std::string name;  // "main" of rlk_linear_logp_fwd_main
  unsigned blocks = 0, threads = 0, shared_bytes = 0;
  int device = -1;
  runtime::cuda::Stream stream = nullptr;
  Args args{};  // of every step but pack
  Copy copy{};  // of pack
};

// Moves a tensor's first element and sets its strides, as a view does.
inline Tensor view(Tensor tensor, std::vector<Int64> strides, Int64 offset_bytes = 0) {
  tensor.data = static_cast<std::byte*>(tensor.data) + offset_bytes;
  std::copy(strides.begin(), strides.end(), tensor.strides.begin());
  return tensor;
}

template <class Args, class Copy = LogpCudaCopy>
class LaunchFixture : public CudaTest {
 protected:
  using Step = LaunchedStep<Args, Copy>;

  static constexpr int k_device = 1;
  inline static void* const k_stream = reinterpret_cast<void*>(0x40);

  LaunchFixture() {
    fake_.fills_memory = false;
    fake_.argument_bytes = [](const std::string& kernel) {
      return kernel.ends_with("_pack") ? sizeof(Copy) : sizeof(Args);
    };
  }

  // An address of its own for each tensor.
  Tensor tensor(DType dtype, std::vector<Int64> shape) {
    Tensor made =
        dense_tensor(reinterpret_cast<void*>(next_), dtype, {Device::Kind::cuda, k_device}, shape);
    next_ += std::uintptr_t{1} << 40;
    return made;
  }

  LoadedKernel load_entries(std::span<const char* const> entries) {
    std::string code;
    for (const char* entry : entries) code += std::string(".entry ") + entry + "( ";
    return load(code, {entries.begin(), entries.end()});
  }

  // What a kernel of an earlier call left behind: an id of 99 of 7 in row 3.
  DeviceError& leave_error(const char* op) {
    DeviceError& error = templates::device_error(driver(), k_device);
    error.row = 3;
    error.id = 99;
    error.num_ids = 7;
    error.op = op;
    error.state = DeviceError::kIdOutOfRange;
    return error;
  }

  void forget() {
    fake_.launches.clear();
    fake_.memsets.clear();
    fake_.tensor_maps.clear();
    fake_.order.clear();
    workspace_.requests.clear();
  }

  std::vector<Step> steps() const {
    std::vector<Step> all;
    for (const FakeCuda::Launch& launch : fake_.launches) {
      Step& step = all.emplace_back();
      step.name = launch.kernel.substr(launch.kernel.rfind('_') + 1);
      step.blocks = launch.grid_x;
      step.threads = launch.block_x;
      step.shared_bytes = launch.shared_bytes;
      step.device = launch.device;
      step.stream = launch.stream;
      void* const to = step.name == "pack" ? static_cast<void*>(&step.copy) : &step.args;
      std::memcpy(to, launch.first_argument.data(), launch.first_argument.size());
    }
    return all;
  }

  // "rows pack main merge": of the launches so far.
  std::string names() const {
    std::string all;
    for (const Step& step : steps()) all += (all.empty() ? "" : " ") + step.name;
    return all;
  }

  FakeWorkspace workspace_;

 private:
  std::uintptr_t next_ = std::uintptr_t{1} << 44;
};

// The arrays of a workspace that steps use.
class WorkspaceArrays {
 public:
  // None where data is null or of no bytes. One that several steps use must be the same in all.
  void add(const std::string& name, const void* data, Int64 bytes) {
    const auto begin = reinterpret_cast<std::uintptr_t>(data);
    if (begin == 0 || bytes == 0) return;
    const auto same = std::ranges::find(arrays_, begin, &Array::begin);
    if (same == arrays_.end()) {
      arrays_.push_back({name, begin, bytes});
    } else {
      EXPECT_TRUE(same->name == name && same->bytes == bytes) << name;
    }
  }

  // Every array lies inside, aligned, apart from the others, and together they are all of it.
  void expect_fill(const FakeWorkspace& workspace) {
    ASSERT_EQ(workspace.requests.size(), 1u);
    std::ranges::sort(arrays_, {}, &Array::begin);
    std::uintptr_t end = FakeWorkspace::k_address;
    for (const Array& array : arrays_) {
      EXPECT_EQ(array.begin, end) << array.name;
      end = array.begin + static_cast<std::uintptr_t>(round_up(array.bytes, 256));
    }
    EXPECT_EQ(end, FakeWorkspace::k_address + workspace.requests[0]);
  }

 private:
  struct Array {
    std::string name;
    std::uintptr_t begin;
    Int64 bytes;
  };
  std::vector<Array> arrays_;
};

}  // namespace rlk::test
