// SPDX-License-Identifier: Apache-2.0
// What a launch asks of the driver, for calls of any size: no memory is behind their tensors. What
// holds of every launch, expect_sound checks; the fixtures of the ops ask it after each.
#pragma once

#include "runtime/tensor.hpp"
#include "runtime/workspace.hpp"
#include "templates/common/cuda_memory.hpp"
#include "templates/common/device_errors.hpp"
#include "templates/common/logp/cuda_args.h"
#include "tests/runtime/cuda/cuda_fixture.hpp"

#include <algorithm>
#include <cstring>
#include <initializer_list>
#include <iterator>
#include <map>
#include <string>
#include <unordered_set>
#include <vector>

namespace rlk::test {

// Notes what it was asked for and gives one address, behind which there is nothing.
class FakeWorkspace : public runtime::Workspace {
 public:
  static constexpr std::uintptr_t k_address = std::uintptr_t{0xa6} << 48;  // and no other's

  void* allocate(std::size_t bytes) override {
    requests.push_back(bytes);
    if (fails) throw DriverError("out of memory");
    return reinterpret_cast<void*>(k_address);
  }

  std::vector<std::size_t> requests;
  bool fails = false;
};

// An array of one value a row that a kernel reads where the tensor lies.
inline void expect_array(const LogpCudaArray& array, const Tensor& tensor) {
  EXPECT_EQ(array.data, tensor.data);
  EXPECT_EQ(array.stride, tensor.strides[0]);
  EXPECT_EQ(array.type, type_code(tensor.dtype));
}

// One that is read from a dense copy, which this step makes of the tensor.
inline void expect_copied(const LogpCudaArray& array, const CudaCopy& copy, const Tensor& tensor) {
  EXPECT_EQ(copy.from, tensor.data);
  EXPECT_EQ(copy.num_rows, tensor.num_elements());
  EXPECT_EQ(copy.num_cols, 1);
  EXPECT_EQ(copy.element_bytes, static_cast<int>(size_bytes(tensor.dtype)));
  EXPECT_EQ(copy.rows, nullptr) << "inactive rows too";
  EXPECT_EQ(array.data, copy.to);
  EXPECT_EQ(array.stride, copy.pitch);
  EXPECT_EQ(array.type, type_code(tensor.dtype));
}

// A launch, with its only argument.
template <class Args, class Copy = CudaCopy>
struct LaunchedStep {
  std::string name;  // "main" of rlk_linear_logp_fwd_main
  unsigned blocks = 0, threads = 0, shared_bytes = 0, cluster = 1;
  unsigned blocks_y = 1;
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

template <class Args, class Copy = CudaCopy>
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

  // An address of its own for each tensor, which no number among the arguments looks like.
  Tensor tensor(DType dtype, std::vector<Int64> shape) {
    Tensor made =
        dense_tensor(reinterpret_cast<void*>(next_), dtype, {Device::Kind::cuda, k_device}, shape);
    const auto bytes = static_cast<std::size_t>(made.num_elements()) * size_bytes(dtype);
    memory_[next_] = std::max<std::size_t>(bytes, 1);
    next_ += static_cast<std::uintptr_t>(round_up(static_cast<Int64>(bytes) + 1, 1 << 20));
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

  // Steps run on the caller's device and stream, within what a target has; what they are given and
  // what is set lies in tensors or in the workspace; nothing waits and nothing is read back, so
  // that a graph may capture it all.
  void expect_sound(Target target) {
    for (const FakeCuda::Launch& launch : fake_.launches) {
      SCOPED_TRACE(launch.kernel);
      EXPECT_EQ(launch.device, k_device);
      EXPECT_EQ(launch.stream, k_stream);
      EXPECT_GE(launch.grid_x, 1u);
      EXPECT_LT(launch.grid_x, 1u << 31);
      EXPECT_TRUE(launch.grid_y >= 1 && launch.grid_y < 1u << 16) << launch.grid_y;
      EXPECT_EQ(launch.block_x % 32, 0u);
      EXPECT_TRUE(launch.block_x >= 32 && launch.block_x <= 1024) << launch.block_x;
      EXPECT_LE(static_cast<int>(launch.shared_bytes), shared_limit_bytes(target));
      for (const std::uintptr_t address : addresses_in(launch.first_argument)) {
        EXPECT_TRUE(is_inside(address, 1)) << std::hex << address;
      }
    }
    for (const FakeCuda::Memset& memset : fake_.memsets) {
      EXPECT_TRUE(is_inside(memset.address, memset.bytes));
      EXPECT_EQ(memset.stream, k_stream);
      EXPECT_EQ(memset.value, 0);
    }
    for (const char* waiting : {"cuStreamSynchronize", "cuCtxSynchronize", "cuMemcpyDtoH",
                                "cuMemAlloc", "cuMemAllocAsync"}) {
      EXPECT_EQ(fake_.num_calls[waiting], 0) << waiting;
    }
    EXPECT_TRUE(fake_.contexts()->empty());
  }

  // A step reads or writes each of these that is present, where it lies.
  void expect_given(std::initializer_list<const Tensor*> tensors) {
    std::unordered_set<std::uintptr_t> given;
    for (const FakeCuda::Launch& launch : fake_.launches) {
      for (const std::uintptr_t address : addresses_in(launch.first_argument)) {
        given.insert(address);
      }
    }
    std::size_t at = 0;
    for (const Tensor* each : tensors) {
      const auto address = reinterpret_cast<std::uintptr_t>(each->data);
      // Not empty, nor a test's own memory.
      const bool is_ours =
          each->present() && each->num_elements() > 0 && address >= k_first_address;
      EXPECT_TRUE(!is_ours || given.contains(address)) << "number " << at;
      ++at;
    }
  }

  void forget() {
    fake_.launches.clear();
    fake_.memsets.clear();
    fake_.tensor_maps.clear();
    fake_.order.clear();
    fake_.num_calls.clear();
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
      step.cluster = launch.cluster;
      step.blocks_y = launch.grid_y;
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
  // By their highest bits.
  static std::vector<std::uintptr_t> addresses_in(const std::vector<std::byte>& argument) {
    std::vector<std::uintptr_t> found;
    for (std::size_t at = 0; at + sizeof(std::uintptr_t) <= argument.size(); at += 8) {
      std::uintptr_t word = 0;
      std::memcpy(&word, argument.data() + at, sizeof word);
      if (word >= k_first_address && word >> 48 <= FakeWorkspace::k_address >> 48) {
        found.push_back(word);
      }
    }
    return found;
  }

  bool is_inside(std::uintptr_t address, std::size_t bytes) const {
    if (address >= FakeWorkspace::k_address) {
      return !workspace_.requests.empty() &&
             address + bytes <= FakeWorkspace::k_address + workspace_.requests.back();
    }
    const auto after = memory_.upper_bound(address);
    if (after == memory_.begin()) return false;
    const auto& [begin, size] = *std::prev(after);
    return address + bytes <= begin + size;
  }

  static constexpr std::uintptr_t k_first_address = std::uintptr_t{0xa5} << 48;
  std::uintptr_t next_ = k_first_address;
  std::map<std::uintptr_t, std::size_t> memory_;  // bytes by address
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
    if (arrays_.empty() && workspace.requests.empty()) return;
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
