// SPDX-License-Identifier: Apache-2.0
// RLK_VALIDATE=sync: the values of a call are looked at before its launch, in the CPU's words.
#include "tests/templates/linear_logp/launch_cuda_fixture.hpp"

#include <algorithm>
#include <limits>

namespace rlk::test {
namespace {

class ValidateCudaTest : public LaunchCudaTest {
 protected:
  // A call whose values a row are in memory of the test's.
  ValidateCudaTest() { set(call_.target, target_, DType::i64); }

  template <class T>
  void set(Tensor& tensor, std::vector<T>& values, DType dtype) {
    const Int64 rows = static_cast<Int64>(values.size());
    tensor = dense_tensor(values.data(), dtype, call_.device, std::span(&rows, 1));
  }

  std::string refused() {
    return what<InvalidArgument>([&] { LaunchCudaTest::run(call_, case_); });
  }

  CudaCase case_{.rows = 4, .vocab = 7, .validate_sync = true};
  LinearLogpCall call_ = make(case_);
  std::vector<Int64> target_{0, 6, 3, 1};
};

TEST_F(ValidateCudaTest, GoodValuesAreLaunchedAfterALook) {
  std::vector<float> temperature{1, 2, 0.5f, 1};
  std::vector<std::uint8_t> mask{1, 0, 1, 1};
  set(call_.temperature, temperature, DType::f32);
  set(call_.mask, mask, DType::boolean);
  run(call_, case_);
  EXPECT_EQ(names(), "main merge");
  EXPECT_EQ(fake_.num_calls["cuMemcpyDtoH"], 3);
  const auto first = [&](const char* name) {
    return std::ranges::find(fake_.order, name) - fake_.order.begin();
  };
  EXPECT_LT(first("cuStreamSynchronize"), first("cuMemcpyDtoH")) << "what wrote them has ended";
  EXPECT_LT(first("cuMemcpyDtoH"), first("cuLaunchKernel"));
  EXPECT_EQ(steps()[1].args.target.data, target_.data()) << "the kernel reads the caller's";
  EXPECT_TRUE(fake_.contexts()->empty());
}

TEST_F(ValidateCudaTest, NothingIsReadWithoutIt) {
  case_.validate_sync = false;
  target_[2] = 7;
  run(call_, case_);
  EXPECT_EQ(fake_.num_calls["cuMemcpyDtoH"], 0);
  EXPECT_EQ(fake_.num_calls["cuStreamSynchronize"], 0);
  EXPECT_EQ(names(), "main merge");
}

TEST_F(ValidateCudaTest, TargetsOutOfRangeAreRefused) {
  for (const Int64 id : {Int64{7}, Int64{-1}, Int64{-100}, Int64{1} << 32,
                         std::numeric_limits<Int64>::max(), std::numeric_limits<Int64>::min()}) {
    target_[2] = id;
    EXPECT_EQ(refused(), "linear_logp: target: expected ids in [0, 7), got " + std::to_string(id) +
                             " in row 2");
  }
  EXPECT_TRUE(fake_.launches.empty());
  EXPECT_TRUE(workspace_.requests.empty());
  EXPECT_TRUE(fake_.contexts()->empty());
}

// The upstream gradient may have any value, and the fake driver's has no memory behind it.
TEST_F(ValidateCudaTest, TheBackwardLooksAtTheSameValues) {
  case_.pass = jit::Pass::bwd;
  call_ = make(case_);
  set(call_.target, target_, DType::i64);
  run(call_, case_);
  EXPECT_EQ(names(), "rows pack grads dz dh join dw");
  target_[0] = 7;
  EXPECT_EQ(refused(), "linear_logp: target: expected ids in [0, 7), got 7 in row 0");
}

TEST_F(ValidateCudaTest, InactiveRowsMayHoldAnything) {
  target_[2] = 99;
  std::vector<float> mask{1, 1, 0, 1}, temperature{1, 1, -3, 1};
  set(call_.mask, mask, DType::f32);
  set(call_.temperature, temperature, DType::f32);
  run(call_, case_);
  EXPECT_EQ(names(), "main merge");
  target_ = {0, -5, 3, -5};
  call_.mask = Tensor();
  call_.temperature = Tensor();
  call_.ignore_index = -5;
  run(call_, case_);
}

TEST_F(ValidateCudaTest, TemperaturesAndMasksAreLookedAt) {
  std::vector<float> temperature{1, 1, 1, 0};
  set(call_.temperature, temperature, DType::f32);
  EXPECT_NE(refused().find("linear_logp: temperature: expected a finite number above 0"),
            std::string::npos);
  temperature[3] = 1;
  std::vector<int> mask{1, 1, 2, 1};
  set(call_.mask, mask, DType::i32);
  EXPECT_EQ(refused(), "linear_logp: mask: expected 0 or 1, got 2 in row 2");
}

TEST_F(ValidateCudaTest, ViewsAreReadByTheirStrides) {
  // Backward over every second element: 1, 3, 6, 0 are the call's, 99 lie between.
  std::vector<Int64> wide{0, 99, 6, 99, 3, 99, 1};
  call_.target.data = wide.data() + 6;
  call_.target.strides[0] = -2;
  run(call_, case_);
  EXPECT_EQ(names(), "main merge");
  wide[4] = 8;
  EXPECT_EQ(refused(), "linear_logp: target: expected ids in [0, 7), got 8 in row 1");
  // One id for all.
  call_.target.strides[0] = 0;
  fake_.launches.clear();
  run(call_, case_);
  EXPECT_EQ(names(), "main merge");
}

// Reading the values would end the capture.
TEST_F(ValidateCudaTest, ACaptureIsUnsupported) {
  fake_.capture = runtime::cuda::CaptureStatus::active;
  const auto text = what<Unsupported>([&] { run(call_, case_); });
  EXPECT_EQ(text,
            "linear_logp: stream: expected no CUDA graph capture with RLK_VALIDATE=sync, which "
            "reads the values of a call, got one");
  EXPECT_EQ(fake_.num_calls["cuStreamSynchronize"], 0);
  EXPECT_EQ(fake_.num_calls["cuMemcpyDtoH"], 0);
  EXPECT_TRUE(fake_.launches.empty());
}

TEST_F(ValidateCudaTest, AFailedReadIsADriverError) {
  for (const char* call : {"cuStreamSynchronize", "cuMemcpyDtoH"}) {
    fake_.fail_call = call;
    fake_.fail_at = 1;
    fake_.fail_code = 700;
    const auto text = what<DriverError>([&] { run(call_, case_); });
    EXPECT_TRUE(text.starts_with(call)) << text;
    EXPECT_TRUE(fake_.contexts()->empty());
  }
  EXPECT_TRUE(fake_.launches.empty());
}

TEST_F(ValidateCudaTest, NoRowsAreNothingToRead) {
  CudaCase none = case_;
  none.rows = 0;
  EXPECT_TRUE(LaunchCudaTest::run(none).empty());
  EXPECT_EQ(fake_.num_calls["cuMemcpyDtoH"], 0);
}

}  // namespace
}  // namespace rlk::test
