// SPDX-License-Identifier: Apache-2.0
// All on the default stream: nothing else runs in this process.
#include "cli/tune/bench.hpp"

#include "cli/tune/subject.hpp"
#include "templates/det_gemm/op.hpp"
#include "templates/linear_logp/op.hpp"

#include <algorithm>
#include <bit>
#include <random>

namespace rlk::cli {
namespace {

using runtime::cuda::DeviceGuard;
using runtime::cuda::Driver;

// Of a block that is repeated: odd, so that no two rows are alike.
constexpr std::size_t k_block_elements = (std::size_t{4} << 20) + 3;
constexpr std::int64_t k_num_outputs = 3;  // of linear_logp: log_prob, row_max, row_log_sum
// Layers follow each other in a model: the weight of a call is not in the card's cache. Above the
// size of any.
constexpr std::size_t k_weights_bytes = std::size_t{256} << 20;

std::size_t bytes_of(std::int64_t count, std::size_t element_bytes) {
  return static_cast<std::size_t>(count) * element_bytes;
}

// Of either sign, magnitudes from 2^(exponent - 4) to 2^exponent. Zeros would draw less power.
void fill_randomly(CardMemory& memory, DType dtype, int exponent, std::uint64_t seed) {
  const int mantissa_bits = dtype == DType::bf16 ? 7 : 10;
  const int bias = dtype == DType::bf16 ? 127 : 15;
  std::mt19937_64 random(seed);
  std::vector<std::uint16_t> block(std::min(k_block_elements, memory.bytes() / 2));
  for (std::uint16_t& element : block) {
    const std::uint64_t drawn = random();
    const auto power = bias + exponent - 1 - static_cast<int>(drawn >> 62);
    const auto mantissa = drawn >> 20 & ((std::uint64_t{1} << mantissa_bits) - 1);
    element = static_cast<std::uint16_t>((drawn & 1) << 15 | std::uint64_t(power) << mantissa_bits |
                                         mantissa);
  }
  memory.fill(block.data(), block.size() * 2);
}

void fill_targets(CardMemory& memory, std::int64_t vocab) {
  std::mt19937_64 random(3);
  std::uniform_int_distribution<std::int64_t> id(0, vocab - 1);
  std::vector<std::int64_t> targets(memory.bytes() / sizeof(std::int64_t));
  for (std::int64_t& target : targets) target = id(random);
  memory.fill(targets.data(), memory.bytes());
}

}  // namespace

CardMemory::CardMemory(Driver& driver, int device, std::size_t bytes)
    : driver_(driver), device_(device), bytes_(bytes) {
  const DeviceGuard guard(driver_, device_);
  driver_.check(driver_.table().mem_alloc(&address_, bytes), "cuMemAlloc");
}

CardMemory::~CardMemory() {
  try {
    const DeviceGuard guard(driver_, device_);
    driver_.table().mem_free(address_);
  } catch (const DriverError&) {
    // Whatever went wrong before has been said.
  }
}

void CardMemory::fill(const void* block, std::size_t block_bytes) {
  const DeviceGuard guard(driver_, device_);
  for (std::size_t at = 0; at < bytes_; at += block_bytes) {
    driver_.check(
        driver_.table().memcpy_htod(address_ + at, block, std::min(block_bytes, bytes_ - at)),
        "cuMemcpyHtoD");
  }
}

void CardMemory::read(void* to, std::size_t bytes) const {
  const DeviceGuard guard(driver_, device_);
  driver_.check(driver_.table().memcpy_dtoh(to, address_, bytes), "cuMemcpyDtoH");
}

// One piece for all calls, as large as the largest asked for.
class TuneBench::Reused final : public runtime::Workspace {
 public:
  Reused(Driver& driver, int device) : driver_(driver), device_(device) {}
  void* allocate(std::size_t bytes) override {
    if (!memory_ || memory_->bytes() < bytes) {
      memory_.reset();  // waits for what was launched
      memory_ = std::make_unique<CardMemory>(driver_, device_, bytes);
    }
    return memory_->data();
  }

 private:
  Driver& driver_;
  int device_;
  std::unique_ptr<CardMemory> memory_;
};

TuneBench::TuneBench(Driver& driver, int device)
    : driver_(driver), device_(device), workspace_(std::make_unique<Reused>(driver, device)) {
  const DeviceGuard guard(driver_, device_);
  driver_.check(driver_.table().event_create(&start_, 0), "cuEventCreate");
  driver_.check(driver_.table().event_create(&end_, 0), "cuEventCreate");
}

TuneBench::~TuneBench() {
  driver_.table().event_destroy(start_);
  driver_.table().event_destroy(end_);
}

void TuneBench::begin(jit::OpCall& call) const {
  call.device = {Device::Kind::cuda, device_};
  call.workspace = workspace_.get();
}

std::vector<std::byte> TuneBench::results(std::int64_t num_rows, int tile, TuneRun run) {
  const DeviceGuard guard(driver_, device_);
  const CardMemory& written = outputs();
  // What a run leaves out is not to look like an earlier one's.
  driver_.check(driver_.table().memset_d8_async(reinterpret_cast<std::uint64_t>(written.data()),
                                                0xff, written.bytes(), nullptr),
                "cuMemsetD8Async");
  run(call(num_rows, tile));
  driver_.check(driver_.table().ctx_synchronize(), "cuCtxSynchronize");
  std::vector<std::byte> bits(result_bytes(num_rows));
  written.read(bits.data(), bits.size());
  return bits;
}

double TuneBench::time_ms(std::int64_t num_rows, int tile, int num_runs, TuneRun run) {
  const DeviceGuard guard(driver_, device_);
  const auto& table = driver_.table();
  driver_.check(table.event_record(start_, nullptr), "cuEventRecord");
  for (int i = 0; i < num_runs; ++i) run(call(num_rows, tile, i));
  driver_.check(table.event_record(end_, nullptr), "cuEventRecord");
  driver_.check(table.event_synchronize(end_), "cuEventSynchronize");
  float ms = 0;
  driver_.check(table.event_elapsed_time(&ms, start_, end_), "cuEventElapsedTime");
  return static_cast<double>(ms) / num_runs;
}

namespace {

// Values of x are about 1, sums of `terms` products some units.
int weight_exponent(std::int64_t terms) {
  return 2 - static_cast<int>(std::bit_width(static_cast<std::uint64_t>(terms))) / 2;
}

class HeadBench final : public TuneBench {
 public:
  HeadBench(Driver& driver, int device, const jit::ModelShape& shape, DType dtype,
            std::int64_t most_rows)
      : TuneBench(driver, device),
        shape_(shape),
        dtype_(dtype),
        hidden_(driver, device, bytes_of(most_rows * shape.hidden, 2)),
        weight_(driver, device, bytes_of(shape.vocab * shape.hidden, 2)),
        target_(driver, device, bytes_of(most_rows, sizeof(std::int64_t))),
        outputs_(driver, device, bytes_of(k_num_outputs * most_rows, sizeof(float))) {
    fill_randomly(hidden_, dtype, 1, 1);
    fill_randomly(weight_, dtype, weight_exponent(shape.hidden), 2);
    fill_targets(target_, shape.vocab);
  }

  const jit::OpCall& call(std::int64_t num_rows, int tile, int) override {
    call_ = {};
    call_.op = &templates::linear_logp_op;
    begin(call_);
    const Device device = call_.device;
    call_.tile = tile;
    call_.ignore_index = std::nullopt;
    set_model_numbers(call_, shape_);
    call_.hidden = dense_tensor(hidden_.data(), dtype_, device, {{num_rows, shape_.hidden}});
    call_.weight = dense_tensor(weight_.data(), dtype_, device, {{shape_.vocab, shape_.hidden}});
    call_.target = dense_tensor(target_.data(), DType::i64, device, {{num_rows}});
    auto* output = static_cast<float*>(outputs_.data());
    for (Tensor* tensor : {&call_.log_prob, &call_.row_max, &call_.row_log_sum}) {
      *tensor = dense_tensor(output, DType::f32, device, {{num_rows}});
      output += num_rows;
    }
    return call_;
  }

 private:
  const CardMemory& outputs() const override { return outputs_; }
  std::size_t result_bytes(std::int64_t num_rows) const override {
    return bytes_of(k_num_outputs * num_rows, sizeof(float));
  }

  jit::ModelShape shape_;
  DType dtype_;
  CardMemory hidden_, weight_, target_, outputs_;
  LinearLogpCall call_;
};

// x * weight^T.
class LayerBench final : public TuneBench {
 public:
  LayerBench(Driver& driver, int device, const jit::LinearShape& layer, DType dtype,
             std::int64_t most_rows)
      : TuneBench(driver, device),
        layer_(layer),
        dtype_(dtype),
        num_weights_(1 + k_weights_bytes / weight_bytes()),
        x_(driver, device, bytes_of(most_rows * layer.inputs, 2)),
        weights_(driver, device, num_weights_ * weight_bytes()),
        out_(driver, device, bytes_of(most_rows * layer.outputs, 2)) {
    fill_randomly(x_, dtype, 1, 1);
    fill_randomly(weights_, dtype, weight_exponent(layer.inputs), 2);
  }

  const jit::OpCall& call(std::int64_t num_rows, int tile, int turn) override {
    call_ = {};
    call_.op = &templates::det_gemm_op;
    begin(call_);
    call_.tile = tile;
    const std::size_t at = static_cast<std::size_t>(turn) % num_weights_;
    call_.a = dense_tensor(x_.data(), dtype_, call_.device, {{num_rows, layer_.inputs}});
    call_.b = dense_tensor(static_cast<std::byte*>(weights_.data()) + at * weight_bytes(), dtype_,
                           call_.device, {{layer_.inputs, layer_.outputs}});
    call_.b.strides = {1, layer_.inputs};
    call_.out = dense_tensor(out_.data(), dtype_, call_.device, {{num_rows, layer_.outputs}});
    return call_;
  }

 private:
  std::size_t weight_bytes() const { return bytes_of(layer_.inputs * layer_.outputs, 2); }
  const CardMemory& outputs() const override { return out_; }
  std::size_t result_bytes(std::int64_t num_rows) const override {
    return bytes_of(num_rows * layer_.outputs, 2);
  }

  jit::LinearShape layer_;
  DType dtype_;
  std::size_t num_weights_;
  CardMemory x_, weights_, out_;
  DetGemmCall call_;
};

}  // namespace

std::unique_ptr<TuneBench> make_tune_bench(Driver& driver, int device, const jit::Op& op,
                                           const jit::ModelShape& shape, DType dtype,
                                           std::int64_t most_rows) {
  if (!tunes_layers(op)) {
    return std::make_unique<HeadBench>(driver, device, shape, dtype, most_rows);
  }
  return std::make_unique<LayerBench>(driver, device, shape.linears.at(0), dtype, most_rows);
}

}  // namespace rlk::cli
