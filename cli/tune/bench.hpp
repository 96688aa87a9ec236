// SPDX-License-Identifier: Apache-2.0
// Calls of linear_logp on random values in a card's memory, for tune to time.
#pragma once

#include "jit/warm/model_shape.hpp"
#include "runtime/cuda/driver.hpp"
#include "runtime/function_ref.hpp"
#include "templates/linear_logp/op.hpp"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

namespace rlk::cli {

// Memory of a card while it lives.
class CardMemory {
 public:
  CardMemory(runtime::cuda::Driver& driver, int device, std::size_t bytes);
  CardMemory(const CardMemory&) = delete;
  CardMemory& operator=(const CardMemory&) = delete;
  ~CardMemory();

  void* data() const { return reinterpret_cast<void*>(address_); }
  std::size_t bytes() const { return bytes_; }
  // Fills it with this block, over and over.
  void fill(const void* block, std::size_t block_bytes);
  void read(void* to, std::size_t bytes) const;

 private:
  runtime::cuda::Driver& driver_;
  int device_;
  std::size_t bytes_;
  std::uint64_t address_ = 0;
};

class TuneBench {
 public:
  // bf16 or f16. Throws DriverError where the card has not the memory.
  TuneBench(runtime::cuda::Driver& driver, int device, const jit::ModelShape& shape, DType dtype,
            std::int64_t most_rows);
  ~TuneBench();

  // Of the first rows. What it points to lives as long as this.
  LinearLogpCall call(std::int64_t num_rows, int tile);

  // Every bit that a run of the call writes.
  std::vector<std::byte> results(const LinearLogpCall& call,
                                 runtime::FunctionRef<void(const LinearLogpCall&)> run);

  // Of one run, on the card, in a burst of so many.
  double time_ms(const LinearLogpCall& call, int num_runs,
                 runtime::FunctionRef<void(const LinearLogpCall&)> run);

 private:
  class Reused;  // workspace

  runtime::cuda::Driver& driver_;
  int device_;
  jit::ModelShape shape_;
  DType dtype_;
  CardMemory hidden_, weight_, target_, outputs_;
  std::unique_ptr<Reused> workspace_;
  runtime::cuda::Event start_ = nullptr, end_ = nullptr;
};

}  // namespace rlk::cli
