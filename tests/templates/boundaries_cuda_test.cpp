// SPDX-License-Identifier: Apache-2.0
// Boundaries, masks and counts in device memory of ppo_loss and group_advantages: with
// RLK_VALIDATE=sync they are looked at before a launch, in the CPU's words.
#include "runtime/error.hpp"
#include "templates/group_advantages/op.hpp"
#include "templates/ppo_loss/op.hpp"
#include "tests/runtime/cuda/cuda_fixture.hpp"

#include <cstring>

namespace rlk::test {
namespace {

class BoundariesCudaTest : public CudaTest {
 protected:
  BoundariesCudaTest() {
    fake_.fills_memory = false;
    fake_.argument_bytes = [](const std::string& kernel) {
      if (kernel.starts_with("rlk_group")) return sizeof(GroupAdvantagesArgs);
      return kernel.ends_with("_pack") ? sizeof(PpoLossPack) : sizeof(PpoLossArgs);
    };
  }

  // In memory of the test's.
  template <class T>
  static Tensor tensor(std::vector<T>& values, DType dtype) {
    const auto size = static_cast<std::int64_t>(values.size());
    return dense_tensor(values.data(), dtype, k_device, std::span(&size, 1));
  }

  void launch(const jit::OpCall& call, bool validate_sync = true) {
    const auto entries = call.op->entries(jit::Pass::fwd, Backend::cuda);
    std::string code;
    for (const char* entry : entries) code += std::string(".entry ") + entry + "( ";
    LoadedKernel kernel = load(code, {entries.begin(), entries.end()});
    kernel.target = Target::sm_100;
    call.op->launch(kernel, call, {.validate_sync = validate_sync});
  }

  std::string refused(const jit::OpCall& call) {
    const auto text = what<InvalidArgument>([&] { launch(call); });
    EXPECT_TRUE(fake_.launches.empty());
    EXPECT_TRUE(fake_.contexts()->empty());
    return text;
  }

  void set(jit::OpCall& call, const jit::Op& op) {
    call.op = &op;
    call.device = k_device;
    call.stream = reinterpret_cast<void*>(0x40);
    call.workspace = &workspace_;
  }

  PpoLossCall loss() {
    PpoLossCall call;
    set(call, templates::ppo_loss_op);
    call.log_probs = call.old_log_probs = call.advantages = tensor(tokens_, DType::f32);
    call.cu_seqlens = tensor(starts_, DType::i64);
    return call;
  }

  GroupAdvantagesCall advantages() {
    GroupAdvantagesCall call;
    set(call, templates::group_advantages_op);
    call.rewards = tensor(tokens_, DType::f32);
    call.group_starts = tensor(groups_, DType::i64);
    return call;
  }

  static constexpr Device k_device{Device::Kind::cuda, 1};

  class Workspace : public runtime::Workspace {
   public:
    void* allocate(std::size_t) override {
      return reinterpret_cast<void*>(std::uintptr_t{1} << 46);
    }
  } workspace_;
  std::vector<float> tokens_ = std::vector<float>(6);
  std::vector<long long> starts_{0, 2, 2, 6}, groups_{0, 1, 6};
};

TEST_F(BoundariesCudaTest, GoodOnesAreLaunchedAfterALook) {
  launch(loss());
  EXPECT_EQ(fake_.launches.size(), 2u);
  EXPECT_EQ(fake_.num_calls["cuMemcpyDtoH"], 1);
  launch(advantages());
  EXPECT_EQ(fake_.num_calls["cuMemcpyDtoH"], 2);
  EXPECT_EQ(fake_.num_calls["cuStreamSynchronize"], 2);
  EXPECT_TRUE(fake_.contexts()->empty());
}

TEST_F(BoundariesCudaTest, NothingIsReadWithoutIt) {
  starts_[1] = groups_[1] = 99;
  launch(loss(), false);
  launch(advantages(), false);
  EXPECT_EQ(fake_.num_calls["cuMemcpyDtoH"], 0);
  EXPECT_EQ(fake_.num_calls["cuStreamSynchronize"], 0);
  EXPECT_EQ(fake_.launches.size(), 3u);
}

TEST_F(BoundariesCudaTest, KernelsAreToldWhereToReport) {
  launch(loss(), false);
  PpoLossArgs args{};
  std::memcpy(&args, fake_.launches[0].first_argument.data(), sizeof args);
  EXPECT_NE(args.error, nullptr);
  EXPECT_STREQ(args.op, "ppo_loss");
  launch(advantages(), false);
  GroupAdvantagesArgs more{};
  std::memcpy(&more, fake_.launches.back().first_argument.data(), sizeof more);
  EXPECT_NE(more.error, nullptr);
  EXPECT_STREQ(more.op, "group_advantages");
}

TEST_F(BoundariesCudaTest, WrongOnesAreRefused) {
  starts_ = {0, 4, 2, 6};
  EXPECT_EQ(refused(loss()), "ppo_loss: cu_seqlens: expected not to decrease, got 2 after 4");
  starts_ = {0, 2, 2, 5};
  EXPECT_EQ(refused(loss()), "ppo_loss: cu_seqlens: expected to end at 6, got 5");
  starts_ = {0, 2, 2, 6};
  PpoLossCall call = loss();
  call.group_starts = tensor(groups_, DType::i64);
  EXPECT_EQ(refused(call), "ppo_loss: group_boundaries: expected to end at 3, got 6");
  EXPECT_EQ(what<InvalidArgument>([&] {
              groups_[1] = 6;
              launch(advantages());
            }),
            "group_advantages: group_boundaries: expected to increase, got 6 after 6");
  groups_ = {0, 5, 6};
  GroupAdvantagesCall alone = advantages();
  alone.group_of_one = kRefused;
  EXPECT_EQ(
      refused(alone),
      "group_advantages: group_boundaries: expected to increase by at least 2, got 6 after 5");
}

TEST_F(BoundariesCudaTest, MasksAndCountsAreLookedAt) {
  PpoLossCall call = loss();
  std::vector<int> mask{1, 0, 1, 2, 1, 1};
  call.mask = tensor(mask, DType::i32);
  EXPECT_EQ(refused(call), "ppo_loss: loss_mask: expected 0 or 1, got 2 at token 3");
  mask[3] = 1;
  std::vector<long long> count{0};
  call.global_tokens = tensor(count, DType::i64);
  EXPECT_EQ(refused(call), "ppo_loss: global_tokens: expected a number above 0, got 0");
}

// Reading the values would end the capture.
TEST_F(BoundariesCudaTest, ACaptureIsUnsupported) {
  fake_.capture = runtime::cuda::CaptureStatus::active;
  const auto text = what<Unsupported>([&] { launch(loss()); });
  EXPECT_TRUE(text.starts_with("ppo_loss: stream: expected no CUDA graph capture")) << text;
  EXPECT_TRUE(fake_.launches.empty());
}

}  // namespace
}  // namespace rlk::test
