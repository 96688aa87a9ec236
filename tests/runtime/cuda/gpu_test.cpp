// SPDX-License-Identifier: Apache-2.0
// The same layer on real devices, with a hand-written PTX kernel; skipped where there is none.
#include "runtime/cuda/cuda_loader.hpp"
#include "runtime/shared_library.hpp"

#include <gtest/gtest.h>

#include <numeric>
#include <string>
#include <thread>
#include <vector>

namespace rlk::runtime::cuda {
namespace {

// out[i] += add, and touches the last word of the dynamic shared memory that it is told of.
const std::string k_ptx = R"(.version 7.4
.target sm_80
.address_size 64
.extern .shared .align 16 .b8 room[];
.visible .entry rlk_toy_add(.param .u64 out, .param .u32 add, .param .u32 shared_bytes)
{
  .reg .b32 %r<8>;
  .reg .b64 %d<4>;
  ld.param.u64 %d0, [out];
  ld.param.u32 %r0, [add];
  ld.param.u32 %r1, [shared_bytes];
  mov.u32 %r2, room;
  add.u32 %r2, %r2, %r1;
  st.shared.u32 [%r2+-4], %r0;
  ld.shared.u32 %r3, [%r2+-4];
  mov.u32 %r4, %tid.x;
  mul.wide.u32 %d1, %r4, 4;
  add.u64 %d1, %d0, %d1;
  cvta.to.global.u64 %d1, %d1;
  ld.global.u32 %r5, [%d1];
  add.u32 %r5, %r5, %r3;
  st.global.u32 [%d1], %r5;
  ret;
}
)";

// Stream functions that the library itself has no need of.
class Streams {
 public:
  Streams() : library_(SharedLibrary::open("libcuda.so.1")) {
    create = library_.function<Result(Stream*, unsigned)>("cuStreamCreate");
    begin_capture = library_.function<Result(Stream, CaptureMode)>("cuStreamBeginCapture_v2");
    end_capture = library_.function<Result(Stream, void**)>("cuStreamEndCapture");
    library_.keep_open();
  }
  Result (*create)(Stream*, unsigned) = nullptr;
  Result (*begin_capture)(Stream, CaptureMode) = nullptr;
  Result (*end_capture)(Stream, void**) = nullptr;

 private:
  SharedLibrary library_;
};

class GpuTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string why;
    driver_ = Driver::find(&why);
    if (driver_ == nullptr) GTEST_SKIP() << why;
    try {
      driver_->devices();
    } catch (const CallError& error) {
      GTEST_SKIP() << error.what();
    }
  }

  LoadedKernel load() const {
    LoadedKernel kernel;
    const char* entries[] = {"rlk_toy_add"};
    make_cuda_loader()->load(kernel, std::as_bytes(std::span(k_ptx.c_str(), k_ptx.size() + 1)),
                             entries);
    return kernel;
  }

  // Queues the kernel on 32 numbers from 0; returns them once done.
  std::vector<int> add(const LoadedKernel& kernel, int device, int value, unsigned shared_bytes) {
    const DriverTable& cuda = driver_->table();
    const DeviceGuard guard(*driver_, device);
    std::vector<int> numbers(32);
    std::iota(numbers.begin(), numbers.end(), 0);
    const std::size_t bytes = numbers.size() * sizeof(int);
    std::uint64_t memory = 0;
    driver_->check(cuda.mem_alloc(&memory, bytes), "cuMemAlloc");
    driver_->check(cuda.memcpy_htod(memory, numbers.data(), bytes), "cuMemcpyHtoD");
    void* arguments[] = {&memory, &value, &shared_bytes};
    entry(kernel, 0).launch(device, nullptr, {{1, 1, 1}, {32, 1, 1}, shared_bytes}, arguments);
    driver_->check(cuda.stream_synchronize(nullptr), "cuStreamSynchronize");
    driver_->check(cuda.memcpy_dtoh(numbers.data(), memory, bytes), "cuMemcpyDtoH");
    driver_->check(cuda.mem_free(memory), "cuMemFree");
    return numbers;
  }

  Driver* driver_ = nullptr;
};

TEST_F(GpuTest, DevicesAreDescribed) {
  EXPECT_GE(driver_->version(), k_oldest_driver);
  for (const auto& device : driver_->devices()) {
    EXPECT_FALSE(device.name.empty());
    EXPECT_GT(device.num_sms, 0);
    EXPECT_GT(device.memory_bytes, std::size_t{1} << 30);
    if (device.target) {
      EXPECT_GE(device.shared_bytes_optin, shared_limit_bytes(*device.target)) << device.name;
    }
  }
}

TEST_F(GpuTest, AKernelRunsOnEveryDeviceWithAllItsSharedMemory) {
  const LoadedKernel kernel = load();
  for (const auto& device : driver_->devices()) {
    for (const unsigned bytes : {4u, static_cast<unsigned>(device.shared_bytes_optin)}) {
      const auto numbers = add(kernel, device.ordinal, 5, bytes);
      for (int i = 0; i < 32; ++i) ASSERT_EQ(numbers[static_cast<std::size_t>(i)], i + 5);
    }
  }
}

// The driver puts off compiling PTX, so that nonsense passes until an entry of it is asked for.
TEST_F(GpuTest, CodeThatIsNoneIsALoadError) {
  const char* entries[] = {"rlk_toy_none"};
  for (const std::string& text : {std::string(".version 7.4\nnonsense"), k_ptx}) {
    LoadedKernel kernel;
    EXPECT_THROW(make_cuda_loader()->load(
                     kernel, std::as_bytes(std::span(text.c_str(), text.size() + 1)), entries),
                 LoadError)
        << text;
  }
}

TEST_F(GpuTest, TooMuchSharedMemoryNamesTheKernel) {
  const LoadedKernel kernel = load();
  try {
    add(kernel, 0, 1, 1 << 20);
    FAIL();
  } catch (const CallError& error) {
    EXPECT_NE(std::string(error.what()).find("CUDA_ERROR_INVALID_VALUE (1)"), std::string::npos)
        << error.what();
  }
}

// In every mode: a prepared kernel is captured, an unprepared one refused, another thread loads
// and unloads meanwhile, and the capture ends well.
TEST_F(GpuTest, ACaptureSurvivesLoadsOfAnotherThread) {
  const Streams streams;
  const DeviceGuard guard(*driver_, 0);
  Stream stream = nullptr;
  driver_->check(streams.create(&stream, 1), "cuStreamCreate");
  std::uint64_t memory = 0;
  driver_->check(driver_->table().mem_alloc(&memory, 128), "cuMemAlloc");
  int value = 1;
  unsigned shared_bytes = 64;
  void* arguments[] = {&memory, &value, &shared_bytes};
  const LaunchDims dims{{1, 1, 1}, {32, 1, 1}, shared_bytes};
  const LoadedKernel ready = load();
  make_cuda_loader()->prepare(ready, 0);
  for (const auto mode :
       {CaptureMode::global, CaptureMode::thread_local_only, CaptureMode::relaxed}) {
    SCOPED_TRACE(static_cast<int>(mode));
    const LoadedKernel cold = load();
    EXPECT_FALSE(is_capturing(*driver_, 0, stream));
    driver_->check(streams.begin_capture(stream, mode), "cuStreamBeginCapture");
    EXPECT_TRUE(is_capturing(*driver_, 0, stream));
    entry(ready, 0).launch(0, stream, dims, arguments);
    EXPECT_THROW(entry(cold, 0).launch(0, stream, dims, arguments), Unsupported);
    std::string failure;
    std::jthread([&] {
      try {
        const LoadedKernel other = load();
        make_cuda_loader()->prepare(other, 0);
      } catch (const Error& error) {
        failure = error.what();
      }
    }).join();
    EXPECT_EQ(failure, "");
    void* graph = nullptr;
    EXPECT_EQ(streams.end_capture(stream, &graph), result::success);
    EXPECT_NE(graph, nullptr);
  }
}

}  // namespace
}  // namespace rlk::runtime::cuda
