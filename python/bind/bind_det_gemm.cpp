// SPDX-License-Identifier: Apache-2.0
// det_gemm: from Python arguments to its products, and their results back.
#include "python/bind/call_arguments.hpp"
#include "python/bind/module.hpp"
#include "templates/det_gemm/op.hpp"

#include <algorithm>
#include <array>
#include <span>
#include <utility>

namespace rlk::bind {
namespace {

const jit::Op& op() { return templates::det_gemm_op; }

std::span<const std::int64_t> lead_of(const Tensor& tensor) {
  return tensor.dims().first(static_cast<std::size_t>(tensor.rank - 1));
}

// A product whose result is new, of the leading axes of `lead` and a last one of `last`.
py::object run(DetGemmCall& call, const Framework& framework, DType dtype,
               std::span<const std::int64_t> lead, std::int64_t last) {
  std::array<std::int64_t, k_max_rank> shape{};
  std::ranges::copy(lead, shape.begin());
  shape[lead.size()] = last;
  const Output out = make_output(framework, dtype, call.device,
                                 std::span(shape).first(lead.size() + 1), call.stream);
  call.out = out.tensor;
  run_call(call, framework, {&out, 1});
  return out.object;
}

// `needs_*`: gradients that autograd will ask for.
py::object det_gemm_forward(const py::dict& arguments, bool sizes_vary, bool needs_a, bool needs_b,
                            bool needs_bias) {
  DetGemmCall call;
  call.sizes_vary = sizes_vary;
  call.needs_a = needs_a;
  call.needs_b = needs_b;
  call.needs_bias = needs_bias;
  call.is_differentiated = needs_a || needs_b || needs_bias;
  const BoundArguments bound = bind_call(op(), arguments, call);
  op().check(call);
  const DType dtype = call.out_dtype != 0 ? DType::f32 : call.a.dtype;
  return run(call, bound.framework, dtype, lead_of(call.a), call.b.shape[1]);
}

// The forward's call, with the gradient of its output.
struct Backward {
  DetGemmCall call;
  BoundArguments bound;
  TensorArgument grad;

  explicit Backward(const py::dict& arguments) : bound(bind_call(op(), arguments, call)) {
    op().check(call);
    grad = bind_argument(arguments["grad_output"], "grad_output", call);
    const ArgumentName name{op().name, "grad_output"};
    const Tensor& given = grad.tensor;
    if (!given.present()) throw InvalidArgument(name.fault("a tensor", "None"));
    if (given.device != call.device) {
      throw InvalidArgument(
          name.fault("device " + text(call.device) + " (that of {a})", text(given.device)));
    }
    if (given.dtype != call.a.dtype) {
      throw InvalidArgument(
          name.fault(fmt::format("dtype {} (that of {{a}})", rlk::name(call.a.dtype)),
                     std::string(rlk::name(given.dtype))));
    }
    Tensor expected = call.a;
    expected.shape[static_cast<std::size_t>(expected.rank - 1)] = call.b.shape[1];
    if (!std::ranges::equal(given.dims(), expected.dims())) {
      throw InvalidArgument(name.fault("shape " + text(expected.dims()), text(given.dims())));
    }
  }

  py::object run(DetGemmCall product, DType dtype, std::span<const std::int64_t> lead,
                 std::int64_t last) const {
    op().check(product);
    return bind::run(product, bound.framework, dtype, lead, last);
  }
};

// Gradients of a, b and bias, None where not needed; that of b as [N, K] where it is asked for so.
// Those of a and b are float32 where `sums_of_` says so.
py::tuple det_gemm_backward(const py::dict& arguments, bool needs_a, bool needs_b, bool needs_bias,
                            bool transposes_b, bool sums_of_a, bool sums_of_b) {
  const Backward given(arguments);
  const DetGemmCall& call = given.call;
  const Tensor &a = call.a, &b = call.b, &grad = given.grad.tensor;
  py::object grad_a = py::none(), grad_b = py::none(), grad_bias = py::none();
  if (needs_a) {
    DetGemmCall product = det_gemm_grad_a(call, grad);
    product.out_dtype = sums_of_a ? kOutFloat32 : kOutOfInputs;
    grad_a = given.run(product, sums_of_a ? DType::f32 : a.dtype, lead_of(a), b.shape[0]);
  }
  if (needs_b) {
    const int rows = transposes_b ? 1 : 0;
    DetGemmCall product = det_gemm_grad_b(call, grad, transposes_b);
    product.out_dtype = sums_of_b ? kOutFloat32 : kOutOfInputs;
    grad_b = given.run(product, sums_of_b ? DType::f32 : b.dtype,
                       {&b.shape[static_cast<std::size_t>(rows)], 1},
                       b.shape[static_cast<std::size_t>(1 - rows)]);
  }
  if (needs_bias) {
    const DType dtype = call.bias.present() ? call.bias.dtype : b.dtype;
    grad_bias = given.run(det_gemm_grad_bias(call, grad), dtype, {}, b.shape[1]);
  }
  return py::make_tuple(grad_a, grad_b, grad_bias);
}

// Adds a^T * grad_output to `into`, a dense float32 [K, N], whose values the sums begin with.
void accumulate(const py::dict& arguments) {
  static constexpr jit::Parameter k_parameters[] = {
      {"a", jit::Kind::tensor, jit::field_of<&DetGemmCall::a>},
      {"grad_output", jit::Kind::tensor, jit::field_of<&DetGemmCall::b>},
      {"into", jit::Kind::tensor, jit::field_of<&DetGemmCall::out>},
  };
  DetGemmCall call;
  call.sums_tokens = true;
  call.accumulates = true;
  const BoundArguments bound = bind_call(op(), k_parameters, arguments, call);
  op().check(call);
  run_call(call, bound.framework, {});
}

py::tuple det_gemm_explain(const py::dict& arguments) {
  DetGemmCall call;
  const BoundArguments bound = bind_call(op(), arguments, call);
  op().check(call);
  if (!flag_of(arguments, "backward", call)) return explain_call(call);
  // The gradient of b: that of a is a forward's product.
  Tensor grad = call.a;
  const auto last = static_cast<std::size_t>(grad.rank - 1);
  grad.shape[last] = call.b.shape[1];
  call.b = dense_tensor(nullptr, grad.dtype, grad.device, grad.dims());
  call.sums_tokens = true;
  call.bias = Tensor{};
  call.out_dtype = 0;
  return explain_call(call);
}

}  // namespace

void bind_det_gemm(py::module_& module) {
  module.def("det_gemm_forward", det_gemm_forward, py::arg("arguments"),
             py::arg("sizes_vary") = false, py::arg("needs_a") = false, py::arg("needs_b") = false,
             py::arg("needs_bias") = false);
  module.def("det_gemm_backward", det_gemm_backward, py::arg("arguments"), py::arg("needs_a"),
             py::arg("needs_b"), py::arg("needs_bias"), py::arg("transposes_b") = false,
             py::arg("sums_of_a") = false, py::arg("sums_of_b") = false);
  module.def("det_gemm_accumulate", accumulate, py::arg("arguments"));
  module.def("det_gemm_explain", det_gemm_explain, py::arg("arguments"));
}

}  // namespace rlk::bind
