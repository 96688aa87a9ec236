// SPDX-License-Identifier: Apache-2.0
// det_gemm: which kernels a model's layers ask for.
#include "templates/det_gemm/op.hpp"

#include "jit/warm/model_shape.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <vector>

namespace rlk {
namespace {

constexpr jit::LinearShape k_layer{4096, 12288};

std::vector<jit::Specialization> variants(DType dtype, jit::Pass pass, Target target) {
  jit::ModelShape shape;
  shape.linears = {k_layer};
  return templates::det_gemm_op.model_variants(shape, dtype, pass, target, jit::Tuning{});
}

Tensor matrix(DType dtype, std::int64_t rows, std::int64_t cols) {
  return dense_tensor(nullptr, dtype, {}, std::array{rows, cols});
}

TEST(DetGemmModel, FloatGradientsOfCastOperandsAreWarmed) {
  for (const DType dtype : {DType::bf16, DType::f16, DType::f32}) {
    const auto found = variants(dtype, jit::Pass::bwd, Target::sm_90a);
    const auto expect_found = [&](const DetGemmCall& call) {
      const auto spec = templates::det_gemm_op.specialize(call, Target::sm_90a, jit::Tuning{});
      EXPECT_NE(std::ranges::find(found, spec), found.end()) << spec.text();
    };
    DetGemmCall call;
    call.op = &templates::det_gemm_op;
    call.a = matrix(dtype, 2048, k_layer.inputs);
    call.b = matrix(dtype, k_layer.inputs, k_layer.outputs);
    call.b.strides = {1, k_layer.inputs};
    const Tensor grad = matrix(dtype, 2048, k_layer.outputs);
    for (const int out : {int{kOutOfInputs}, int{kOutFloat32}}) {  // weight's and x's are float32
      for (DetGemmCall gradient : {det_gemm_grad_a(call, grad), det_gemm_grad_b(call, grad, true),
                                   det_gemm_grad_bias(call, grad)}) {
        gradient.out_dtype = out;
        expect_found(gradient);
      }
    }
  }
}

TEST(DetGemmModel, OneKernelIsListedOnce) {
  for (const jit::Pass pass : {jit::Pass::fwd, jit::Pass::bwd}) {
    auto found = variants(DType::f32, pass, Target::sm_90a);
    for (auto one = found.begin(); one != found.end(); ++one) {
      EXPECT_EQ(std::find(one + 1, found.end(), *one), found.end()) << one->text();
      EXPECT_EQ(one->value_of("out"), kOutOfInputs);
    }
  }
}

}  // namespace
}  // namespace rlk
