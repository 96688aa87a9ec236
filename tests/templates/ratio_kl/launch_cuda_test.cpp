// SPDX-License-Identifier: Apache-2.0
// What ratio_kl's launch gives its kernel: arrays of any strides in place, options, slopes.
#include "templates/ratio_kl/op.hpp"
#include "tests/templates/common/launch_fixture.hpp"

namespace rlk::test {
namespace {

// Where the tensor lies, by strides that reach its elements in its order.
void expect_read(const RatioKlArray& array, const Tensor& tensor) {
  EXPECT_EQ(array.data, tensor.data);
  EXPECT_EQ(array.type, type_code(tensor.dtype));
  const std::vector<Int64> sizes(array.sizes, array.sizes + array.num_axes);
  const std::vector<Int64> strides(array.strides, array.strides + array.num_axes);
  std::vector<Int64> got, wanted;
  for_each_offset(sizes, strides, [&](Int64 offset) { got.push_back(offset); });
  for_each_offset(tensor.dims(), tensor.steps(), [&](Int64 offset) { wanted.push_back(offset); });
  EXPECT_EQ(got, wanted);
}

template <class Args>
class Launch : public LaunchFixture<Args> {
 protected:
  using Base = LaunchFixture<Args>;

  RatioKlCall make(jit::Pass pass, std::vector<Int64> shape) {
    RatioKlCall call;
    call.op = &templates::ratio_kl_op;
    call.pass = pass;
    call.device = {Device::Kind::cuda, Base::k_device};
    call.stream = Base::k_stream;
    call.workspace = &this->workspace_;
    const auto make = [&](DType dtype) { return this->tensor(dtype, shape); };
    call.ratio_slope = make(DType::f32);
    call.kl_slope = make(DType::f32);
    if (pass == jit::Pass::bwd) {
      call.grad_kl = make(DType::bf16);
      call.grad = make(DType::f32);
      return call;
    }
    call.log_prob = make(DType::f32);
    call.old = make(DType::bf16);
    call.ref = make(DType::f64);
    call.target = make(DType::i32);
    call.ratio = make(DType::f32);
    call.kl = make(DType::f32);
    call.choices.kl = kKl3;
    call.values.kl_clamp = 20.0f;
    return call;
  }

  std::vector<LaunchedStep<Args>> run(const RatioKlCall& call) {
    this->forget();
    LoadedKernel kernel = this->load_entries(call.op->entries(call.pass, Backend::cuda));
    kernel.target = Target::sm_90a;
    call.op->check(call);
    call.op->launch(kernel, call, {});
    this->expect_sound(kernel.target);
    EXPECT_TRUE(this->workspace_.requests.empty());
    if (!this->fake_.launches.empty()) {
      this->expect_given({&call.log_prob, &call.old, &call.ref, &call.target, &call.mask,
                          &call.ratio, &call.kl, &call.ratio_slope, &call.kl_slope,
                          &call.grad_ratio, &call.grad_kl, &call.grad});
    }
    return this->steps();
  }
};

using LaunchRatioKlTest = Launch<RatioKlArgs>;
using LaunchRatioKlBackwardTest = Launch<RatioKlBackwardArgs>;

TEST_F(LaunchRatioKlTest, AForwardIsOneStep) {
  RatioKlCall call = make(jit::Pass::fwd, {1000});
  call.ignore_index = -100;
  const auto all = run(call);
  ASSERT_EQ(names(), "main");
  EXPECT_EQ(all[0].blocks, 4u);
  const RatioKlArgs& args = all[0].args;
  EXPECT_EQ(args.num_tokens, 1000);
  expect_read(args.old, call.old);
  expect_read(args.ref, call.ref);
  expect_read(args.target, call.target);
  EXPECT_EQ(args.mask.data, nullptr);
  EXPECT_EQ(args.has_ignore_index, 1);
  EXPECT_EQ(args.ignore_index, -100);
  EXPECT_EQ(args.choices.kl, kKl3);
  EXPECT_EQ(args.values.kl_clamp, 20.0f);
}

TEST_F(LaunchRatioKlTest, ArraysOfAnyStridesAreReadInPlace) {
  RatioKlCall call = make(jit::Pass::fwd, {3, 4, 5});
  call.old = view(call.old, {20, 1, 4});
  call.ref = view(call.ref, {0, 0, 0});
  call.mask = view(tensor(DType::boolean, {3, 4, 5}), {40, 10, 2});
  call.ratio_slope = call.kl_slope = {};
  const auto all = run(call);
  ASSERT_EQ(names(), "main");
  const RatioKlArgs& args = all[0].args;
  expect_read(args.old, call.old);
  expect_read(args.ref, call.ref);
  expect_read(args.mask, call.mask);
  EXPECT_EQ(args.old.num_axes, 3);
  EXPECT_EQ(args.ref.num_axes, 1);
  EXPECT_EQ(args.mask.num_axes, 1);
  EXPECT_EQ(args.has_ignore_index, 0);
  EXPECT_EQ(args.ratio_slope, nullptr);
  EXPECT_EQ(args.kl_slope, nullptr);
}

TEST_F(LaunchRatioKlTest, NoTokensAreNoLaunch) {
  EXPECT_TRUE(run(make(jit::Pass::fwd, {0, 7})).empty());
}

TEST_F(LaunchRatioKlTest, ManyTokensAreNoMoreBlocksThanAGridHolds) {
  EXPECT_EQ(run(make(jit::Pass::fwd, {Int64{1} << 33}))[0].blocks, 4096u);
}

TEST_F(LaunchRatioKlBackwardTest, ABackwardIsOneStep) {
  RatioKlCall call = make(jit::Pass::bwd, {6, 100});
  call.grad_kl = view(call.grad_kl, {0, 0});
  const auto all = run(call);
  ASSERT_EQ(names(), "main");
  EXPECT_EQ(all[0].blocks, 3u);
  EXPECT_EQ(all[0].args.num_tokens, 600);
  EXPECT_EQ(all[0].args.grad_ratio.data, nullptr);
  expect_read(all[0].args.grad_kl, call.grad_kl);
}

}  // namespace
}  // namespace rlk::test
