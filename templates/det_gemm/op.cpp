// SPDX-License-Identifier: Apache-2.0
// det_gemm for the dispatcher: its parameters, constants, check, entry points and variants.
#include "templates/det_gemm/op.hpp"

#include "runtime/error.hpp"
#include "templates/common/expect.hpp"
#include "templates/det_gemm/cuda_args.h"
#include "templates/registry.hpp"

#include <algorithm>
#include <array>
#include <cmath>

namespace rlk {
namespace {

constexpr jit::Word k_out_dtypes[] = {{"float32", kOutFloat32}};
constexpr jit::Parameter k_parameters[] = {
    {"a", jit::Kind::tensor, jit::field_of<&DetGemmCall::a>},
    {"b", jit::Kind::tensor, jit::field_of<&DetGemmCall::b>},
    {"bias", jit::Kind::tensor, jit::field_of<&DetGemmCall::bias>},
    {.name = "out_dtype",
     .kind = jit::Kind::word,
     .field = jit::field_of<&DetGemmCall::out_dtype>,
     .words = k_out_dtypes},
};

constexpr auto k_tile_names = [] {
  std::array<std::string_view, std::size(kDetGemmTiles)> names;
  for (std::size_t i = 0; i < names.size(); ++i) names[i] = kDetGemmTiles[i].name;
  return names;
}();
constexpr auto k_tile_words = [] {
  auto words = k_tile_names;
  words[0] = "";  // left out of the text form
  return words;
}();
constexpr std::string_view k_lanes_words[] = {"", "lanes"};
constexpr std::string_view k_out_words[] = {"", "f32", "f32+"};

enum Constant : std::size_t { k_x, k_k, k_n, k_a, k_b, k_out, k_tile };
constexpr jit::ConstantDef k_constants[] = {k_type_constant,
                                            {"K", "kK"},
                                            {"N", "kN"},
                                            {"a", "kALanes", k_lanes_words},
                                            {"b", "kBLanes", k_lanes_words},
                                            {"out", "kOut", k_out_words},
                                            {"tile", "kTile", k_tile_words}};

constexpr const char* k_cpu_entries[] = {"rlk_det_gemm_fwd_pack", "rlk_det_gemm_fwd_main"};

DetGemmOperand operand_of(const Tensor& tensor, bool lead_is_lanes) {
  DetGemmOperand operand;
  operand.tensor = &tensor;
  operand.lead_is_lanes = lead_is_lanes;
  const auto leading = static_cast<std::size_t>(tensor.rank - 1);
  for (const auto size : tensor.dims().first(leading)) operand.lead *= size;
  operand.lead_stride = flat_stride(tensor.dims().first(leading), tensor.steps().first(leading));
  operand.last = tensor.shape[leading];
  operand.last_stride = tensor.strides[leading];
  return operand;
}

void launch(const LoadedKernel& kernel, const jit::OpCall& base,
            const jit::LaunchSettings& settings) {
  const auto& call = static_cast<const DetGemmCall&>(base);
  backend(kernel.target) == Backend::cuda ? launch_det_gemm_cuda(kernel, call, settings)
                                          : launch_det_gemm_cpu(kernel, call);
}

std::span<const char* const> entries(jit::Pass pass, Backend backend) {
  if (pass == jit::Pass::bwd) return {};
  return backend == Backend::cuda ? det_gemm_cuda_entries() : std::span(k_cpu_entries);
}

jit::Specialization specialize(const jit::OpCall& base, Target target, const jit::Tuning& tuning) {
  const auto& call = static_cast<const DetGemmCall&>(base);
  jit::Specialization spec =
      jit::Specialization{call.op, call.pass, target, {type_code(call.b.dtype)}}.generic();
  if (backend(target) == Backend::cpu) {
    if (call.sums_tokens || call.sizes_vary) return spec;
    spec.values[k_k] = call.b.shape[0];
    spec.values[k_n] = call.b.shape[1];
    spec.values[k_a] = spec.values[k_b] = spec.values[k_out] = spec.values[k_tile] = 0;
    return spec;
  }
  const DetGemmProduct product = det_gemm_product(call);
  const bool b_lanes = product.b.runs_along_lanes();
  spec.values[k_a] = call.a.present() && product.a.runs_along_lanes();
  spec.values[k_b] = b_lanes;
  spec.values[k_out] = det_gemm_out(call);
  const DetGemmLoop loop = det_gemm_loop(static_cast<int>(spec.values[k_x]), target);
  const int asked = call.tile.value_or(tuning.tiles[jit::row_class(product.rows())]);
  spec.values[k_tile] = det_gemm_has_tile(loop, asked, b_lanes)
                            ? asked
                            : det_gemm_tile(loop, product.rows(), product.cols(), b_lanes);
  return spec;
}

int dynamic_shared_bytes(const jit::Specialization& spec) {
  if (backend(spec.target) == Backend::cpu) return 0;
  return det_gemm_cuda_shared_bytes(static_cast<int>(spec.values[k_x]), spec.target,
                                    static_cast<int>(spec.values[k_tile]));
}

std::vector<jit::Specialization> generic_variants(Target target) {
  std::vector<jit::Specialization> variants;
  for (const int x : k_storage_codes) {
    variants.push_back(
        jit::Specialization{&templates::det_gemm_op, jit::Pass::fwd, target, {x}}.generic());
  }
  return variants;
}

// The products that are asked for of a call's gradients.
std::vector<DetGemmCall> gradient_calls(const DetGemmCall& call) {
  Tensor grad = call.a;
  grad.shape[static_cast<std::size_t>(grad.rank - 1)] = call.b.shape[1];
  grad = dense_tensor(nullptr, grad.dtype, grad.device, grad.dims());
  std::vector<DetGemmCall> calls;
  if (call.needs_a) calls.push_back(det_gemm_grad_a(call, grad));
  // As a weight lies.
  const bool transposes = operand_of(call.b, false).is_transposed();
  if (call.needs_b) calls.push_back(det_gemm_grad_b(call, grad, transposes));
  if (call.needs_bias) calls.push_back(det_gemm_grad_bias(call, grad));
  return calls;
}

std::vector<jit::Specialization> gradients(const jit::OpCall& base, Target target,
                                           const jit::Tuning& tuning) {
  std::vector<jit::Specialization> kernels;
  for (const DetGemmCall& call : gradient_calls(static_cast<const DetGemmCall&>(base))) {
    kernels.push_back(specialize(call, target, tuning));
  }
  return kernels;
}

// The products of a layer x * weight^T: its result, or in the backward the gradients of x, weight
// and bias, in the dtype of the product and as those of float32 operands that autocast casts.
std::vector<DetGemmCall> layer_calls(const jit::LinearShape& layer, DType dtype, jit::Pass pass,
                                     std::int64_t num_rows) {
  const auto matrix = [&](std::int64_t rows, std::int64_t cols) {
    const std::int64_t sizes[] = {rows, cols};
    return dense_tensor(nullptr, dtype, {}, sizes);
  };
  DetGemmCall call;
  call.op = &templates::det_gemm_op;
  call.a = matrix(num_rows, layer.inputs);
  call.b = matrix(layer.inputs, layer.outputs);
  call.b.strides = {1, layer.inputs};
  if (pass == jit::Pass::fwd) return {call};
  call.needs_a = call.needs_b = call.needs_bias = true;
  std::vector<DetGemmCall> calls = gradient_calls(call);
  for (DetGemmCall sums : gradient_calls(call)) {
    sums.out_dtype = kOutFloat32;
    calls.push_back(sums);
  }
  return calls;
}

std::vector<jit::Specialization> model_variants(const jit::ModelShape& shape, DType dtype,
                                                jit::Pass pass, Target target,
                                                const jit::Tuning& tuning) {
  std::vector<jit::Specialization> variants;
  for (const jit::LinearShape& layer : shape.linears) {
    // Of numbers of rows that have tiles of their own.
    for (const std::int64_t num_rows : {1, 64, 128, 256, 512, 1024, 2048, 4096, 8192}) {
      for (const DetGemmCall& call : layer_calls(layer, dtype, pass, num_rows)) {
        const auto spec = templates::det_gemm_op.specialize(call, target, tuning);
        // What ships with rlk need not be warmed.
        if (spec.is_generic() || std::ranges::find(variants, spec) != variants.end()) continue;
        variants.push_back(spec);
      }
    }
  }
  return variants;
}

std::vector<jit::Specialization> alternatives(const jit::Specialization& spec) {
  std::vector<jit::Specialization> others;
  const std::int64_t own = spec.values[k_tile];
  if (backend(spec.target) == Backend::cpu || own == jit::k_run_time) return others;
  const int x = static_cast<int>(spec.values[k_x]);
  for (int tile = 0; tile < std::ssize(kDetGemmTiles); ++tile) {
    const bool has = det_gemm_has_tile(det_gemm_loop(x, spec.target), tile, spec.values[k_b] == 1);
    if (tile == own || !has) continue;
    others.push_back(spec);
    others.back().values[k_tile] = tile;
  }
  return others;
}

}  // namespace

DetGemmProduct det_gemm_product(const DetGemmCall& call) {
  DetGemmProduct product;
  product.b = operand_of(call.b, false);
  if (call.a.present()) product.a = operand_of(call.a, !call.sums_tokens);
  return product;
}

DetGemmOut det_gemm_out(const DetGemmCall& call) {
  if (call.accumulates) return kOutAdded;
  // float32 of float32 is one kernel, not two.
  return call.out_dtype == kOutFloat32 && call.b.dtype != DType::f32 ? kOutFloat32 : kOutOfInputs;
}

namespace {

DetGemmCall gradient_of(const DetGemmCall& call, bool sums_tokens, const Tensor& a,
                        const Tensor& b) {
  DetGemmCall made;
  made.op = call.op;
  made.device = call.device;
  made.stream = call.stream;
  made.sums_tokens = sums_tokens;
  made.a = a;
  made.b = b;
  return made;
}

}  // namespace

DetGemmCall det_gemm_grad_a(const DetGemmCall& call, const Tensor& grad) {
  Tensor transposed = call.b;
  std::swap(transposed.shape[0], transposed.shape[1]);
  std::swap(transposed.strides[0], transposed.strides[1]);
  return gradient_of(call, false, grad, transposed);
}

DetGemmCall det_gemm_grad_b(const DetGemmCall& call, const Tensor& grad, bool transposes) {
  return transposes ? gradient_of(call, true, grad, call.a) : gradient_of(call, true, call.a, grad);
}

DetGemmCall det_gemm_grad_bias(const DetGemmCall& call, const Tensor& grad) {
  DetGemmCall made = gradient_of(call, true, Tensor{}, grad);
  const DType dtype = call.bias.present() ? call.bias.dtype : call.b.dtype;
  made.out_dtype = dtype == DType::f32 ? kOutFloat32 : kOutOfInputs;
  return made;
}

constinit const std::size_t k_det_gemm_tile = k_tile;

DetGemmLoop det_gemm_loop(int x, Target target) {
  if (x == kFloat32) return kDetGemmFp32;
  return target == Target::sm_90a ? kDetGemmSm90 : kDetGemmSm80;
}

int det_gemm_tile(DetGemmLoop loop, Int64 rows, Int64 cols, bool b_lanes) {
  constexpr double k_num_sms = 132;  // about as many as the cards have on which this matters
  int best = det_gemm_first_tile(loop);
  double least = 0;
  for (int tile = 0; tile < kDetGemmNumTiles; ++tile) {
    if (!det_gemm_has_tile(loop, tile, b_lanes)) continue;
    const auto& t = kDetGemmTiles[tile];
    const Int64 num_tiles = ceil_div(rows, t.rows) * ceil_div(cols, t.cols);
    const double waves = std::ceil(static_cast<double>(num_tiles) / k_num_sms);
    const double cost = waves * t.rows * t.cols * t.cost;
    if (least == 0 || cost < least) {
      best = tile;
      least = cost;
    }
  }
  return best;
}

namespace templates {
const jit::Op det_gemm_op{
    .name = "det_gemm",
    .constants = k_constants,
    .check = check_det_gemm,
    .specialize = specialize,
    .launch = launch,
    .entries = entries,
    .dynamic_shared_bytes = dynamic_shared_bytes,
    .generic_variants = generic_variants,
    .model_variants = model_variants,
    .find_source = find_source,
    .alternatives = alternatives,
    .gradients = gradients,
    .tile_names = k_tile_names,
    .parameters = k_parameters,
};
}  // namespace templates

}  // namespace rlk
