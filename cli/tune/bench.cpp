// SPDX-License-Identifier: Apache-2.0
// All on the default stream: nothing else runs in this process.
#include "cli/tune/bench.hpp"

#include <algorithm>
#include <bit>
#include <random>

namespace rlk::cli {
namespace {

using runtime::cuda::DeviceGuard;
using runtime::cuda::Driver;

// Of a block that is repeated: odd, so that no two rows are alike.
constexpr std::size_t k_block_elements = (std::size_t{4} << 20) + 3;
constexpr std::int64_t k_num_outputs = 3;  // log_prob, row_max, row_log_sum

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

TuneBench::TuneBench(Driver& driver, int device, const jit::ModelShape& shape, DType dtype,
                     std::int64_t most_rows)
    : driver_(driver),
      device_(device),
      shape_(shape),
      dtype_(dtype),
      hidden_(driver, device, bytes_of(most_rows * shape.hidden, 2)),
      weight_(driver, device, bytes_of(shape.vocab * shape.hidden, 2)),
      target_(driver, device, bytes_of(most_rows, sizeof(std::int64_t))),
      outputs_(driver, device, bytes_of(k_num_outputs * most_rows, sizeof(float))),
      workspace_(std::make_unique<Reused>(driver, device)) {
  // Logits of some units, whatever the hidden size.
  const auto half_log =
      static_cast<int>(std::bit_width(static_cast<std::uint64_t>(shape.hidden))) / 2;
  fill_randomly(hidden_, dtype, 1, 1);
  fill_randomly(weight_, dtype, 2 - half_log, 2);
  fill_targets(target_, shape.vocab);
  const DeviceGuard guard(driver_, device_);
  driver_.check(driver_.table().event_create(&start_, 0), "cuEventCreate");
  driver_.check(driver_.table().event_create(&end_, 0), "cuEventCreate");
}

TuneBench::~TuneBench() {
  driver_.table().event_destroy(start_);
  driver_.table().event_destroy(end_);
}

LinearLogpCall TuneBench::call(std::int64_t num_rows, int tile) {
  const Device device{Device::Kind::cuda, device_};
  LinearLogpCall call;
  call.op = &templates::linear_logp_op;
  call.device = device;
  call.workspace = workspace_.get();
  call.tile = tile;
  call.ignore_index = std::nullopt;
  set_model_numbers(call, shape_);
  call.hidden = dense_tensor(hidden_.data(), dtype_, device, {{num_rows, shape_.hidden}});
  call.weight = dense_tensor(weight_.data(), dtype_, device, {{shape_.vocab, shape_.hidden}});
  call.target = dense_tensor(target_.data(), DType::i64, device, {{num_rows}});
  auto* output = static_cast<float*>(outputs_.data());
  for (Tensor* tensor : {&call.log_prob, &call.row_max, &call.row_log_sum}) {
    *tensor = dense_tensor(output, DType::f32, device, {{num_rows}});
    output += num_rows;
  }
  return call;
}

std::vector<std::byte> TuneBench::results(const LinearLogpCall& call,
                                          runtime::FunctionRef<void(const LinearLogpCall&)> run) {
  const DeviceGuard guard(driver_, device_);
  // What a run leaves out is not to look like an earlier one's.
  driver_.check(driver_.table().memset_d8_async(reinterpret_cast<std::uint64_t>(outputs_.data()),
                                                0xff, outputs_.bytes(), nullptr),
                "cuMemsetD8Async");
  run(call);
  driver_.check(driver_.table().ctx_synchronize(), "cuCtxSynchronize");
  std::vector<std::byte> bits(bytes_of(k_num_outputs * call.target.num_elements(), sizeof(float)));
  outputs_.read(bits.data(), bits.size());
  return bits;
}

double TuneBench::time_ms(const LinearLogpCall& call, int num_runs,
                          runtime::FunctionRef<void(const LinearLogpCall&)> run) {
  const DeviceGuard guard(driver_, device_);
  const auto& table = driver_.table();
  driver_.check(table.event_record(start_, nullptr), "cuEventRecord");
  for (int i = 0; i < num_runs; ++i) run(call);
  driver_.check(table.event_record(end_, nullptr), "cuEventRecord");
  driver_.check(table.event_synchronize(end_), "cuEventSynchronize");
  float ms = 0;
  driver_.check(table.event_elapsed_time(&ms, start_, end_), "cuEventElapsedTime");
  return static_cast<double>(ms) / num_runs;
}

}  // namespace rlk::cli
