// SPDX-License-Identifier: Apache-2.0
// The arguments that all log-prob ops take, from Python.
#pragma once

#include "python/bind/tensor_argument.hpp"
#include "templates/common/logp/call.hpp"

#include <cstdint>
#include <span>

namespace rlk::bind {

// What tensors of a call point to, kept alive.
struct LogpArguments {
  TensorArgument target, temperature, mask;
};

// As Python gives them.
struct LogpOptions {
  py::handle target, temperature, softcap, logit_scale, mask, ignore_index;
};

// Fills the call, whose op and stream are set. Throws InvalidArgument.
LogpArguments bind_logp_arguments(const LogpOptions& options, LogpCallBase& call);

// `argument` reads "op: argument". Throws InvalidArgument for what is no truth value.
bool bind_flag(py::handle object, const char* argument);

// Throws InvalidArgument where the call has no such tensor.
void expect_given(const Tensor& tensor, const char* argument, const jit::OpCall& call);

// What a forward gives beside the log-prob; saved: two values a row for the backward.
struct LogpResults {
  bool entropy, lse, saved;
};

// Makes the results, float32 of shape `row_dims`, and runs the call. Returns the log-prob, or where
// more is asked for (log_prob, entropy, lse, row_max, row_log_sum), None for what is not.
py::object run_logp_forward(LogpCallBase& call, const Framework& framework,
                            std::span<const std::int64_t> row_dims, const LogpResults& wanted);

// The upstream gradients, and what the forward saved, of a backward.
struct LogpBackwardArguments {
  TensorArgument grad_output, grad_entropy, grad_lse, row_max, row_log_sum, entropy;
};
LogpBackwardArguments bind_logp_backward(py::handle grad_output, py::handle grad_entropy,
                                         py::handle grad_lse, py::handle row_max,
                                         py::handle row_log_sum, py::handle entropy,
                                         LogpCallBase& call);

}  // namespace rlk::bind
