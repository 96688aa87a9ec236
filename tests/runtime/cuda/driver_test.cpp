// SPDX-License-Identifier: Apache-2.0
// Opening, errors, devices and guards, over a fake libcuda.
#include "runtime/cuda/driver.hpp"

#include "tests/runtime/cuda/cuda_fixture.hpp"

#include <algorithm>
#include <set>
#include <thread>

namespace rlk::runtime::cuda {
namespace {

using test::what;

class DriverTest : public test::CudaTest {};

TEST_F(DriverTest, OpeningAsksTheVersionAndInitializesNothing) {
  for (const int version : {12020, 12080, 13000}) {
    fake_.version = version;
    fake_.num_calls.clear();
    const Driver driver(RLK_FAKE_CUDA);
    EXPECT_EQ(driver.version(), version);
    EXPECT_EQ(fake_.num_calls, (std::map<std::string, int>{{"cuDriverGetVersion", 1}}));
  }
}

TEST_F(DriverTest, FunctionsAreAskedForAsOfCuda12) {
  driver();
  EXPECT_EQ(fake_.asked_version, 12000);
  const std::set<std::string> asked(fake_.asked.begin(), fake_.asked.end());
  EXPECT_EQ(asked.size(), fake_.asked.size()) << "one asked twice";
  EXPECT_TRUE(asked.contains("cuLibraryLoadData"));
  EXPECT_TRUE(asked.contains("cuCtxPushCurrent"));
}

TEST_F(DriverTest, AMissingLibraryIsALoadError) {
  const auto text = what<LoadError>([] { Driver driver("/nowhere/libcuda.so.1"); });
  EXPECT_NE(text.find("CUDA driver: /nowhere/libcuda.so.1: cannot open"), text.npos) << text;
}

TEST_F(DriverTest, ADriverBefore12IsALoadError) {
  const auto text = what<LoadError>([] { Driver driver(RLK_FAKE_CUDA_11); });
  EXPECT_NE(text.find("expected a driver of CUDA 12.0 or later"), text.npos) << text;
  fake_.version = 11080;
  const auto other = what<LoadError>([] { Driver driver(RLK_FAKE_CUDA); });
  EXPECT_NE(other.find("expected CUDA 12.0 or later, got 11.8"), other.npos) << other;
}

TEST_F(DriverTest, AMissingFunctionIsALoadErrorThatNamesIt) {
  fake_.missing_function = "cuLibraryUnload";
  const auto text = what<LoadError>([] { Driver driver(RLK_FAKE_CUDA); });
  EXPECT_NE(text.find("cuLibraryUnload"), text.npos) << text;
}

TEST_F(DriverTest, ErrorsCarryCallNameAndCode) {
  try {
    driver().check(result::out_of_memory, "cuMemAlloc");
    FAIL();
  } catch (const DriverError& error) {
    EXPECT_STREQ(error.what(), "cuMemAlloc: CUDA_ERROR_OUT_OF_MEMORY (2): out of memory");
    EXPECT_EQ(dynamic_cast<const CallError&>(error).code(), 2);
  }
  EXPECT_EQ(what<CallError>([&] { driver().check(12345, "cuX"); }), "cuX: unknown error (12345)");
}

TEST_F(DriverTest, InitRunsOnceAndAgainAfterAFailure) {
  fake_.fail_call = "cuInit";
  fake_.fail_code = result::no_device;
  EXPECT_EQ(what<CallError>([&] { driver().init(); }), "cuInit: CUDA_ERROR_NO_DEVICE (100)");
  driver().init();
  driver().init();
  EXPECT_EQ(fake_.num_calls["cuInit"], 2);
}

TEST_F(DriverTest, DevicesHaveCapabilitiesAndTargets) {
  fake_.capabilities = {{8, 0}, {7, 5}, {10, 3}, {8, 7}};
  const auto& devices = driver().devices();
  ASSERT_EQ(devices.size(), 4u);
  EXPECT_EQ(devices[0].target, Target::sm_80);
  EXPECT_EQ(devices[1].target, std::nullopt);
  EXPECT_EQ(devices[2].target, Target::sm_100);
  EXPECT_EQ(devices[3].target, Target::compute_80);
  EXPECT_EQ(devices[1].name, "Fake H100 number 1");
  EXPECT_EQ(devices[0].num_sms, 132);
  EXPECT_EQ(devices[0].shared_bytes_optin, 227 << 10);
  EXPECT_EQ(devices[0].memory_bytes, std::size_t{80} << 30);
  driver().devices();
  EXPECT_EQ(fake_.num_calls["cuDeviceGetCount"], 1);
  EXPECT_EQ(what<InvalidArgument>([&] { driver().device(4); }),
            "device: expected one of the 4 CUDA devices, got cuda:4");
  EXPECT_THROW(driver().device(-1), InvalidArgument);
}

// Whichever call of the listing fails, the next listing is whole.
TEST_F(DriverTest, AFailedListingIsTriedAgain) {
  for (const char* call : {"cuDeviceGetCount", "cuDeviceGet", "cuDeviceGetName",
                           "cuDeviceGetAttribute", "cuDeviceTotalMem"}) {
    Driver fresh(RLK_FAKE_CUDA);
    fake_.fail_call = call;
    fake_.fail_at = std::string_view(call) == "cuDeviceGetCount" ? 1 : 2;
    fake_.fail_code = result::invalid_value;
    EXPECT_THROW(fresh.devices(), CallError) << call;
    EXPECT_EQ(fresh.devices().size(), 2u) << call;
  }
}

TEST_F(DriverTest, ThePrimaryContextIsRetainedOnceADevice) {
  const Context first = driver().primary_context(0);
  EXPECT_EQ(driver().primary_context(0), first);
  EXPECT_NE(driver().primary_context(1), first);
  EXPECT_EQ(fake_.num_calls["cuDevicePrimaryCtxRetain"], 2);
}

TEST_F(DriverTest, TheGuardMakesADeviceCurrentAndGivesTheOldOneBack) {
  auto& contexts = *fake_.contexts();
  {
    const DeviceGuard outer(driver(), 1);
    EXPECT_EQ(contexts, std::vector{1});
    {
      const DeviceGuard inner(driver(), 0);
      EXPECT_EQ(contexts, (std::vector{1, 0}));
    }
    {
      const DeviceGuard same(driver(), 1);
      EXPECT_EQ(contexts, std::vector{1});
    }
  }
  EXPECT_TRUE(contexts.empty());
}

TEST_F(DriverTest, TheGuardKeepsTheCallersOwnContextOfThatDevice) {
  auto& contexts = *fake_.contexts();
  contexts = {test::FakeCuda::k_own_context};
  {
    const DeviceGuard same(driver(), 1);
    EXPECT_EQ(contexts.size(), 1u);
    const DeviceGuard other(driver(), 0);
    EXPECT_EQ(contexts.back(), 0);
  }
  EXPECT_EQ(contexts, std::vector{test::FakeCuda::k_own_context});
}

TEST_F(DriverTest, RelaxedCaptureEndsWithItsScope) {
  CaptureMode mode = CaptureMode::thread_local_only;
  driver().table().exchange_capture_mode(&mode);
  {
    const RelaxedCapture relaxed(driver());
    mode = CaptureMode::relaxed;
    driver().table().exchange_capture_mode(&mode);
    EXPECT_EQ(mode, CaptureMode::relaxed);
  }
  mode = CaptureMode::global;
  driver().table().exchange_capture_mode(&mode);
  EXPECT_EQ(mode, CaptureMode::thread_local_only);
}

}  // namespace
}  // namespace rlk::runtime::cuda
