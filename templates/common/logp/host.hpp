// SPDX-License-Identifier: Apache-2.0
// How host code of every log-prob op brings the rows of a call to its kernels, on both backends.
#pragma once

#include "runtime/cuda/driver.hpp"
#include "templates/common/cuda_copies.hpp"
#include "templates/common/logp/call.hpp"
#include "templates/common/logp/cuda_args.h"

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

namespace rlk {

// --- CPU
// ------------------------------------------------------------------------------------------

// The rows of a call: which are active, where they lie, and their values. All vectors are over the
// active rows in ascending order.
struct ActiveRows {
  std::int64_t num_rows = 0;  // of the call, inactive ones included
  std::int64_t num_active = 0;
  std::vector<std::int64_t> rows;     // empty: all are active
  std::int64_t num_places = 0;        // active rows of the forward
  std::vector<std::int64_t> places;   // of each among them; empty: the same
  std::vector<std::int64_t> offsets;  // in the matrix; empty: row * row_stride
  std::int64_t row_stride = 0;
  std::vector<std::int64_t> target;                 // columns; -1: of another rank
  std::vector<float> inverse_temperature;           // empty: 1
  std::vector<float> grad, grad_entropy, grad_lse;  // backward; empty: 0
};

// `matrix` is [..., columns]; only its shape and strides are looked at. Throws InvalidArgument,
// naming the row, on a target outside [0, V), a temperature that is not above 0 or a mask that is
// neither 0 nor 1; the first two in active rows only. Where ranks share a vocabulary V is that of
// all, and `vocab` the columns here. `drops_zero_gradients`: of a backward, rows whose upstream
// gradients are all 0 are not active.
ActiveRows active_rows(const LogpCallBase& call, const Tensor& matrix, std::int64_t vocab,
                       bool drops_zero_gradients = false);

template <class T>
const T* data_or_null(const std::vector<T>& values) {
  return values.empty() ? nullptr : values.data();
}

// Fills what the arguments of all CPU kernels have by the same names. They point into `active`.
template <class Args>
void set_rows(Args& args, const LogpCallBase& call, const ActiveRows& active) {
  args.rows = data_or_null(active.rows);
  args.target = active.target.data();
  args.inverse_temperature = data_or_null(active.inverse_temperature);
  args.grad = data_or_null(active.grad);
  args.grad_entropy = data_or_null(active.grad_entropy);
  args.grad_lse = data_or_null(active.grad_lse);
  set_logit_options(args, call);
}

// Where the partials of leaves lie: arrays of `size`, one after the other from `first` on.
template <class Args>
void set_partials(Args& args, float* first, std::int64_t size, bool entropy, bool stats) {
  const auto next = [&] { return std::exchange(first, first + size); };
  args.partial_max = next();
  args.partial_sum = next();
  if (entropy) args.partial_moment = next();
  if (stats) args.partial_stats = {next(), next(), reinterpret_cast<int*>(next())};
}

// The forward's results as inactive rows have them, whatever lay there: 0, argmax -1; an absent one
// stays.
void zero_results(const LogpCallBase& call);
void zero(const Tensor& dense);

// Floats of a vector of the level.
std::int64_t vector_lanes(Target level);

// --- CUDA
// -----------------------------------------------------------------------------------------

// The values per row of a call as kernels read them: in place where one stride tells where they
// lie, else copied first; and copies of its matrices.
class LogpCudaCopies : public CudaCopies {
 public:
  // Everything of a call but `rows`, `error` and `op`, and sizes of the matrix, which are set.
  void set_rows(Arena& arena, const LogpCallBase& call, LogpCudaRows& rows);

 private:
  LogpCudaArray per_row(Arena& arena, const Tensor& tensor);
};

// RLK_VALIDATE=sync: looks at the values of a call on the host before the launch; `matrix` and
// `vocab` as in active_rows. Waits for the call's stream, then throws what the CPU would. Throws
// Unsupported while the stream is being captured.
void validate_logp_cuda(runtime::cuda::Driver& driver, const LogpCallBase& call,
                        const Tensor& matrix, std::int64_t vocab);

}  // namespace rlk
