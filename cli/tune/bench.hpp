// SPDX-License-Identifier: Apache-2.0
// Calls on random values in a card's memory, for tune to time.
#pragma once

#include "jit/op.hpp"
#include "jit/warm/model_shape.hpp"
#include "runtime/cuda/driver.hpp"
#include "runtime/function_ref.hpp"

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

// Runs a call.
using TuneRun = runtime::FunctionRef<void(const jit::OpCall&)>;

class TuneBench {
 public:
  TuneBench(runtime::cuda::Driver& driver, int device);
  TuneBench(const TuneBench&) = delete;
  TuneBench& operator=(const TuneBench&) = delete;
  virtual ~TuneBench();

  // Of the first rows; the turn-th of a burst, which may have a weight of its own. It lives until
  // the next one.
  virtual const jit::OpCall& call(std::int64_t num_rows, int tile, int turn = 0) = 0;

  // Every bit that a run of the call writes.
  std::vector<std::byte> results(std::int64_t num_rows, int tile, TuneRun run);

  // Of one run, on the card, in a burst of so many.
  double time_ms(std::int64_t num_rows, int tile, int num_runs, TuneRun run);

 protected:
  // Fills in what all calls have.
  void begin(jit::OpCall& call) const;
  runtime::cuda::Driver& driver() const { return driver_; }
  int device() const { return device_; }

 private:
  class Reused;  // workspace

  virtual const CardMemory& outputs() const = 0;
  virtual std::size_t result_bytes(std::int64_t num_rows) const = 0;

  runtime::cuda::Driver& driver_;
  int device_;
  std::unique_ptr<Reused> workspace_;
  runtime::cuda::Event start_ = nullptr, end_ = nullptr;
};

// Of an op of ops_with_tiles(), in bf16 or f16. Throws DriverError where the card has not the
// memory.
std::unique_ptr<TuneBench> make_tune_bench(runtime::cuda::Driver& driver, int device,
                                           const jit::Op& op, const jit::ModelShape& shape,
                                           DType dtype, std::int64_t most_rows);

}  // namespace rlk::cli
