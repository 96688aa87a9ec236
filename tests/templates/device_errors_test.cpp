// SPDX-License-Identifier: Apache-2.0
// Error words: raised once, cleared, waited for.
#include "templates/common/device_errors.hpp"

#include "tests/runtime/cuda/cuda_fixture.hpp"

namespace rlk::templates {
namespace {

using test::what;

class DeviceErrorsTest : public test::CudaTest {
 protected:
  // The words outlive a test, so their driver must too.
  static runtime::cuda::Driver& driver() {
    static auto* driver = new runtime::cuda::Driver(RLK_FAKE_CUDA);
    return *driver;
  }

  // As a kernel would.
  static void set(DeviceError& error, long long row, long long id) {
    error = {DeviceError::kIdOutOfRange, row, id, 128256, "linear_logp", 0, 0};
  }

  DeviceErrorsTest() {
    first_.state = second_.state = DeviceError::kNone;
    fake_.num_calls.clear();
  }

  DeviceError& first_ = device_error(driver(), 0);
  DeviceError& second_ = device_error(driver(), 1);
};

TEST_F(DeviceErrorsTest, EachDeviceHasOneWordInPinnedMemory) {
  EXPECT_NE(&first_, &second_);
  EXPECT_EQ(&device_error(driver(), 0), &first_);
  EXPECT_EQ(&device_error(driver(), 1), &second_);
  EXPECT_EQ(fake_.num_calls["cuMemHostAlloc"], 0) << "made once";
}

TEST_F(DeviceErrorsTest, AWordIsRaisedOnceInWords) {
  raise_device_error(first_);
  set(first_, 5'000'000'000, -7);
  EXPECT_EQ(what<InvalidArgument>([&] { raise_device_error(first_); }),
            "linear_logp: target: expected ids in [0, 128256), got -7 in row 5000000000");
  EXPECT_EQ(first_.state, DeviceError::kNone);
  raise_device_error(first_);
  EXPECT_TRUE(fake_.num_calls.empty()) << "a plain read";
}

TEST_F(DeviceErrorsTest, BoundariesAreToldInWords) {
  first_ = {DeviceError::kBadSequence, 2, 0, 0, "ppo_loss", 7, -3};
  EXPECT_EQ(
      what<InvalidArgument>([&] { raise_device_error(first_); }),
      "ppo_loss: cu_seqlens: expected to start at 0, not to decrease and end at the last, got "
      "7 to -3 at 2");
  first_ = {DeviceError::kBadGroup, 0, 0, 0, "group_advantages", 5, 9};
  EXPECT_EQ(
      what<InvalidArgument>([&] { raise_device_error(first_); }),
      "group_advantages: group_boundaries: expected to start at 0, to increase and end at the "
      "last, got 5 to 9 at 0");
  raise_device_error(first_);
}

TEST_F(DeviceErrorsTest, AWordThatIsBeingWrittenIsLeftAlone) {
  set(first_, 1, 2);
  first_.state = DeviceError::kBeingWritten;
  raise_device_error(first_);
  EXPECT_EQ(first_.state, DeviceError::kBeingWritten);
}

TEST_F(DeviceErrorsTest, CheckingWaitsForTheDeviceFirst) {
  set(second_, 3, 4);
  check_device_errors(0);
  EXPECT_EQ(fake_.synchronized, std::vector{0});
  EXPECT_NE(what<InvalidArgument>([] { check_device_errors(1); }), "");
  EXPECT_EQ(fake_.synchronized, (std::vector{0, 1}));
  EXPECT_TRUE(fake_.contexts()->empty());
  check_device_errors(1);
}

TEST_F(DeviceErrorsTest, CheckingAllTellsOfEachInTurn) {
  set(first_, 1, 200'000);
  set(second_, 2, 300'000);
  EXPECT_NE(what<InvalidArgument>([] { check_device_errors({}); }).find("200000 in row 1"),
            std::string::npos);
  EXPECT_NE(what<InvalidArgument>([] { check_device_errors({}); }).find("300000 in row 2"),
            std::string::npos);
  fake_.synchronized.clear();
  check_device_errors({});
  EXPECT_EQ(fake_.synchronized, (std::vector{0, 1}));
}

TEST_F(DeviceErrorsTest, DevicesThatNeverRanHaveNothingToSay) {
  for (const int device : {2, 63, 64, -1}) check_device_errors(device);
  EXPECT_TRUE(fake_.num_calls.empty());
}

// What the wait finds (a fault of any kernel) is the driver's error, and the word stays.
TEST_F(DeviceErrorsTest, AFailedWaitIsADriverError) {
  set(first_, 1, 2);
  fake_.fail_call = "cuCtxSynchronize";
  fake_.fail_at = 1;
  fake_.fail_code = 700;
  EXPECT_NE(what<DriverError>([] { check_device_errors(0); }).find("cuCtxSynchronize"),
            std::string::npos);
  EXPECT_TRUE(fake_.contexts()->empty());
  EXPECT_NE(what<InvalidArgument>([] { check_device_errors(0); }), "");
}

}  // namespace
}  // namespace rlk::templates
