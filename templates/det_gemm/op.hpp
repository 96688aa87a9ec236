// SPDX-License-Identifier: Apache-2.0
// det_gemm: matrix products of which an element's bits depend on its own row, column and terms
// alone. Its call, and the stages that its files make.
#pragma once

#include "jit/op.hpp"
#include "templates/common/cuda_memory.hpp"
#include "templates/common/types.hpp"
#include "templates/det_gemm/cuda_args.h"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

namespace rlk {

// out[..., M, N] = a[..., M, K] * b[K, N] + bias[N]; the gradient of a is such a product too. A sum
// over tokens is out[K, N] = sum over m of a[..., m, K] * b[..., m, N], or without a, as if that
// were [..., m, 1] of ones, out[N]. All are of the pass fwd.
struct DetGemmCall : jit::OpCall {
  Tensor a, b;                 // float32, bfloat16 or float16, the same
  Tensor bias;                 // optional, not of a sum over tokens; the inputs' dtype or float32
  std::int64_t out_dtype = 0;  // 1: float32, whatever the inputs' is

  Tensor out;  // dense; its dtype is what out_dtype says
  bool sums_tokens = false;
  bool sizes_vary = false;   // none is a parameter's: they are arguments of the kernel
  bool accumulates = false;  // a sum over tokens: into out, which is float32

  // Of a call that is differentiated: what in.
  bool needs_a = false, needs_b = false, needs_bias = false;

  std::optional<int> tile;  // CUDA: in place of the one that is chosen; an index of tile_names
};

// A matrix [lead][last] of a call, whose leading axes are one. Its lanes are rows of a or columns
// of b, its terms those of the sum.
struct DetGemmOperand {
  const Tensor* tensor = nullptr;
  bool lead_is_lanes = false;
  Int64 lead = 1, last = 1;
  std::optional<Int64> lead_stride;  // nothing where the leading axes have more than one
  Int64 last_stride = 1;

  // Memory runs along the leading axes; else along the last one, in a copy if need be.
  bool is_transposed() const { return lead_stride == 1 && last_stride != 1; }
  bool runs_along_lanes() const { return is_transposed() == lead_is_lanes; }
  Int64 lanes() const { return lead_is_lanes ? lead : last; }
  Int64 terms() const { return lead_is_lanes ? last : lead; }
};

// The product of a call.
struct DetGemmProduct {
  DetGemmOperand a, b;
  Int64 rows() const { return a.lanes(); }
  Int64 cols() const { return b.lanes(); }
  Int64 terms() const { return b.terms(); }
};
DetGemmProduct det_gemm_product(const DetGemmCall& call);

DetGemmOut det_gemm_out(const DetGemmCall& call);

// The products that are the gradients of a call with leading axes and b, `grad` being that of its
// result: [..., M, K]; [K, N], or [N, K] where asked for so; [N].
DetGemmCall det_gemm_grad_a(const DetGemmCall& call, const Tensor& grad);
DetGemmCall det_gemm_grad_b(const DetGemmCall& call, const Tensor& grad, bool transposes);
DetGemmCall det_gemm_grad_bias(const DetGemmCall& call, const Tensor& grad);

void check_det_gemm(const jit::OpCall& call);

void launch_det_gemm_cpu(const LoadedKernel& kernel, const DetGemmCall& call);

// Index of the constant kTile among the op's constants.
extern const std::size_t k_det_gemm_tile;

// The loop that inputs of this type code take.
DetGemmLoop det_gemm_loop(int x, Target target);

// The tile of a product of this size, where nothing was tuned: that of the least waves * area.
int det_gemm_tile(DetGemmLoop loop, Int64 rows, Int64 cols, bool b_lanes);

std::span<const char* const> det_gemm_cuda_entries();

// Most dynamic shared memory of a step; tile: value of kTile.
int det_gemm_cuda_shared_bytes(int x, Target target, int tile);

// Queues the call on its stream. Throws Unsupported, DriverError.
void launch_det_gemm_cuda(const LoadedKernel& kernel, const DetGemmCall& call,
                          const jit::LaunchSettings& settings);

namespace templates {
extern const jit::Op det_gemm_op;
}

}  // namespace rlk
