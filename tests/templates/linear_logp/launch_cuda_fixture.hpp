// SPDX-License-Identifier: Apache-2.0
// What a launch of linear_logp asks of the driver, for calls of any size: no memory is behind them.
#pragma once

#include "templates/linear_logp/cuda_plan.hpp"
#include "templates/linear_logp/launch_cuda.hpp"
#include "tests/runtime/cuda/cuda_fixture.hpp"

#include <optional>
#include <string>
#include <vector>

namespace rlk::test {

// Sizes and options of a call; tensors are dense and aligned until a test alters them.
struct CudaCase {
  Int64 rows = 1000, vocab = 1000, dim = 64;
  DType dtype = DType::bf16;
  jit::Pass pass = jit::Pass::fwd;
  bool has_mask = false, has_bias = false, has_temperature = false;
  std::optional<Int64> ignore_index = std::nullopt;
  std::optional<double> softcap = std::nullopt;
  double logit_scale = 1.0;
  bool has_entropy = false, has_lse = false;  // backward: upstream gradients of them
  bool needs_hidden = true, needs_weight = true, needs_bias = false;
  Target target = Target::sm_100;  // the loops that gather; sm_90a has its own
  Int64 tile = 0;                  // of the constant kTile
  int max_sms = 0;
  int budget_mib = 512;
  bool validate_sync = false;
};

// Notes what it was asked for and gives one address, behind which there is nothing.
class FakeWorkspace : public runtime::Workspace {
 public:
  static constexpr std::uintptr_t k_address = std::uintptr_t{1} << 46;

  void* allocate(std::size_t bytes) override {
    requests.push_back(bytes);
    if (fails) throw DriverError("out of memory");
    return reinterpret_cast<void*>(k_address);
  }

  std::vector<std::size_t> requests;
  bool fails = false;
};

struct CudaStep {
  std::string name;  // "main" of rlk_linear_logp_fwd_main
  unsigned blocks = 0, threads = 0, shared_bytes = 0;
  int device = -1;
  runtime::cuda::Stream stream = nullptr;
  LinearLogpCudaArgs args{};  // of every step but pack
  LogpCudaCopy copy{};        // of pack
};

class LaunchCudaTest : public CudaTest {
 protected:
  static constexpr int k_device = 1;
  inline static void* const k_stream = reinterpret_cast<void*>(0x40);

  LaunchCudaTest() {
    fake_.fills_memory = false;
    fake_.argument_bytes = [](const std::string& kernel) {
      return kernel.ends_with("_pack") ? sizeof(LogpCudaCopy) : sizeof(LinearLogpCudaArgs);
    };
  }

  // An address of its own for each tensor.
  Tensor tensor(DType dtype, std::vector<Int64> shape) {
    Tensor made =
        dense_tensor(reinterpret_cast<void*>(next_), dtype, {Device::Kind::cuda, k_device}, shape);
    next_ += std::uintptr_t{1} << 40;
    return made;
  }

  LinearLogpCall make(const CudaCase& wanted);
  void run(const LinearLogpCall& call, const CudaCase& wanted);
  // Makes and runs.
  std::vector<CudaStep> run(const CudaCase& wanted);

  std::vector<CudaStep> steps() const;
  // "rows pack main merge": of the launches so far.
  std::string names() const;

  FakeWorkspace workspace_;

 private:
  std::uintptr_t next_ = std::uintptr_t{1} << 44;
};

// Moves a tensor's first element and sets its strides, as a view does.
inline Tensor view(Tensor tensor, std::vector<Int64> strides, Int64 offset_bytes = 0) {
  tensor.data = static_cast<std::byte*>(tensor.data) + offset_bytes;
  std::copy(strides.begin(), strides.end(), tensor.strides.begin());
  return tensor;
}

// Every array of the workspace that these steps use lies inside it, aligned, apart from the others,
// and together they are all of it.
void expect_sound_workspace(const std::vector<CudaStep>& steps, const FakeWorkspace& workspace,
                            DType dtype);

}  // namespace rlk::test
