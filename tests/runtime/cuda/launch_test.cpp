// SPDX-License-Identifier: Apache-2.0
// Launching on a device and stream, first launches, and captures.
#include "runtime/cuda/launch.hpp"

#include "tests/runtime/cuda/cuda_fixture.hpp"

namespace rlk::runtime::cuda {
namespace {

using test::what;

const auto k_stream = reinterpret_cast<Stream>(0x40);

class LaunchTest : public test::CudaTest {
 protected:
  LoadedKernel kernel_ = load(".entry rlk_a( .entry rlk_b(", {"rlk_a", "rlk_b"});
  LoadedEntry& entry_ = entry(kernel_, 0);
};

TEST_F(LaunchTest, EverythingReachesTheDriver) {
  int n = 3;
  void* arguments[] = {&n};
  entry_.launch(1, k_stream, {{7, 1, 1}, {128, 1, 1}, 4096}, arguments);
  ASSERT_EQ(fake_.launches.size(), 1u);
  const auto& launch = fake_.launches[0];
  EXPECT_EQ(launch.kernel, "rlk_a");
  EXPECT_EQ(launch.device, 1);
  EXPECT_EQ(launch.grid_x, 7u);
  EXPECT_EQ(launch.block_x, 128u);
  EXPECT_EQ(launch.shared_bytes, 4096u);
  EXPECT_EQ(launch.stream, k_stream);
  EXPECT_EQ(launch.arguments, arguments);
  EXPECT_TRUE(fake_.contexts()->empty());
}

TEST_F(LaunchTest, PreparationIsOnceADeviceAndAllowsAllSharedMemory) {
  for (const int device : {0, 1, 0, 1}) entry_.launch(device, k_stream, {}, nullptr);
  EXPECT_EQ(fake_.num_calls["cuKernelGetFunction"], 2);
  ASSERT_EQ(fake_.attributes.size(), 2u);
  EXPECT_EQ(fake_.attributes[0].attribute, 8);
  EXPECT_EQ(fake_.attributes[0].device, 0);
  EXPECT_EQ(fake_.attributes[1].device, 1);
  EXPECT_EQ(fake_.attributes[1].value, (227 << 10) - 1024);
}

TEST_F(LaunchTest, AWarmLaunchIsTwoCalls) {
  const DeviceGuard guard(driver(), 0);
  entry_.launch(0, k_stream, {}, nullptr);
  fake_.order.clear();
  entry_.launch(0, k_stream, {}, nullptr);
  EXPECT_EQ(fake_.order, (std::vector<std::string>{"cuCtxGetCurrent", "cuLaunchKernel"}));
}

TEST_F(LaunchTest, PrepareCoversEveryEntry) {
  runtime::cuda::make_cuda_loader()->prepare(kernel_, 1);
  EXPECT_TRUE(entry_.is_prepared(1));
  EXPECT_TRUE(entry(kernel_, 1).is_prepared(1));
  EXPECT_FALSE(entry_.is_prepared(0));
  EXPECT_FALSE(entry_.is_prepared(-1));
  for (const auto mode : fake_.load_modes) EXPECT_EQ(mode, CaptureMode::relaxed);
}

TEST_F(LaunchTest, AFirstLaunchInsideACaptureIsUnsupported) {
  fake_.capture = CaptureStatus::active;
  const auto text = what<Unsupported>([&] { entry_.launch(0, k_stream, {}, nullptr); });
  EXPECT_NE(text.find("call once before the capture, or rlk.jit.preload()"), text.npos) << text;
  EXPECT_TRUE(fake_.launches.empty());
  EXPECT_EQ(fake_.num_calls["cuKernelGetFunction"], 0);
  EXPECT_TRUE(fake_.contexts()->empty());

  runtime::cuda::make_cuda_loader()->prepare(kernel_, 0);
  entry_.launch(0, k_stream, {}, nullptr);
  EXPECT_EQ(fake_.launches.size(), 1u);
  // Device 1 was not prepared by that.
  EXPECT_THROW(entry_.launch(1, k_stream, {}, nullptr), Unsupported);
}

TEST_F(LaunchTest, AFailedPreparationIsTriedAgain) {
  for (const char* call : {"cuKernelGetFunction", "cuKernelGetAttribute", "cuKernelSetAttribute",
                           "cuCtxPushCurrent", "cuCtxGetCurrent"}) {
    fake_.fail_call = call;
    fake_.fail_at = 1;
    fake_.fail_code = result::out_of_memory;
    const LoadedKernel fresh = load(".entry rlk_a(", {"rlk_a"});
    EXPECT_THROW(entry(fresh, 0).launch(0, k_stream, {}, nullptr), CallError) << call;
    EXPECT_FALSE(entry(fresh, 0).is_prepared(0)) << call;
    EXPECT_TRUE(fake_.contexts()->empty()) << call;
    entry(fresh, 0).launch(0, k_stream, {}, nullptr);
  }
}

TEST_F(LaunchTest, ARefusedLaunchNamesKernelAndDims) {
  fake_.fail_call = "cuLaunchKernel";
  fake_.fail_code = result::invalid_value;
  EXPECT_EQ(
      what<CallError>([&] { entry_.launch(0, k_stream, {{2, 3, 4}, {5, 6, 7}, 8}, nullptr); }),
      "cuLaunchKernel: CUDA_ERROR_INVALID_VALUE (1): rlk_a of 2x3x4 blocks of 5x6x7 threads, 8 "
      "bytes dynamic shared");
  EXPECT_TRUE(fake_.contexts()->empty());
}

TEST_F(LaunchTest, ClustersReachTheDriver) {
  int n = 3;
  void* arguments[] = {&n};
  entry_.launch(1, k_stream, {{8, 1, 1}, {128, 1, 1}, 4096, 2}, arguments);
  ASSERT_EQ(fake_.launches.size(), 1u);
  const auto& launch = fake_.launches[0];
  EXPECT_EQ(launch.kernel, "rlk_a");
  EXPECT_EQ(launch.device, 1);
  EXPECT_EQ(launch.grid_x, 8u);
  EXPECT_EQ(launch.block_x, 128u);
  EXPECT_EQ(launch.shared_bytes, 4096u);
  EXPECT_EQ(launch.cluster, 2u);
  EXPECT_EQ(launch.stream, k_stream);
  EXPECT_EQ(launch.arguments, arguments);
  EXPECT_EQ(
      what<CallError>([&] { entry_.launch(0, k_stream, {{7, 3, 4}, {5, 6, 7}, 8, 2}, nullptr); }),
      "cuLaunchKernelEx: CUDA_ERROR_INVALID_VALUE (1): rlk_a of 7x3x4 blocks of 5x6x7 threads, 8 "
      "bytes dynamic shared, clusters of 2");
  EXPECT_TRUE(fake_.contexts()->empty());
}

TEST_F(LaunchTest, OverlapsReachTheDriver) {
  const LaunchDims dims{.grid = {8}, .block = {128}, .overlaps = true};
  entry_.launch(1, k_stream, dims, nullptr);
  ASSERT_EQ(fake_.launches.size(), 1u);
  EXPECT_TRUE(fake_.launches[0].overlaps);
  EXPECT_EQ(fake_.launches[0].cluster, 1u);
  EXPECT_EQ(fake_.launches[0].grid_x, 8u);
  LaunchDims both = dims;
  both.cluster = 2;
  entry_.launch(1, k_stream, both, nullptr);
  EXPECT_TRUE(fake_.launches.at(1).overlaps);
  EXPECT_EQ(fake_.launches[1].cluster, 2u);
}

TEST_F(LaunchTest, CapturesAreSeen) {
  EXPECT_FALSE(is_capturing(driver(), 0, k_stream));
  fake_.capture = CaptureStatus::active;
  EXPECT_TRUE(is_capturing(driver(), 0, k_stream));
  fake_.capture = CaptureStatus::invalidated;
  EXPECT_TRUE(is_capturing(driver(), 0, k_stream));
  fake_.capture = CaptureStatus::none;
  fake_.fail_call = "cuStreamIsCapturing";
  fake_.fail_at = 1;
  fake_.fail_code = result::capture_implicit;
  EXPECT_TRUE(is_capturing(driver(), 0, nullptr));
  fake_.fail_at = 1;
  fake_.fail_code = result::invalid_value;
  EXPECT_THROW(is_capturing(driver(), 0, nullptr), CallError);
}

TEST_F(LaunchTest, ADeviceThatIsNotThereIsRefused) {
  EXPECT_THROW(entry_.launch(2, k_stream, {}, nullptr), InvalidArgument);
}

}  // namespace
}  // namespace rlk::runtime::cuda
