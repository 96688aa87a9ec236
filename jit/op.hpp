// SPDX-License-Identifier: Apache-2.0
// What an op tells the dispatcher: its constants and one function a stage.
#pragma once

#include "jit/parameter.hpp"
#include "jit/specialization.hpp"
#include "jit/tuning.hpp"
#include "jit/warm/model_shape.hpp"
#include "runtime/loaded_kernel.hpp"
#include "runtime/tensor.hpp"
#include "runtime/workspace.hpp"

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

namespace rlk::jit {

struct Op;

// Base of each op's call struct, which adds the tensors and values by name.
struct OpCall {
  const Op* op = nullptr;
  Pass pass = Pass::fwd;
  Device device;
  // CUDA alone.
  void* stream = nullptr;                   // the caller's CUstream
  runtime::Workspace* workspace = nullptr;  // temporary memory, of the caller's framework
  // A forward of which gradients will be asked for: what they need is compiled meanwhile.
  bool is_differentiated = false;
};

// What settings tell a launch. Results do not depend on it.
struct LaunchSettings {
  std::int64_t workspace_bytes = std::int64_t{768} << 20;  // CUDA: of a backward, about
  int max_sms = 0;             // CUDA: that kernels are launched for, 0: all
  bool validate_sync = false;  // CUDA: look at the values of a call before its launch
};

// What a compiler is given: for a CPU level, kernel_cpu.cpp as bitcode; for every CUDA target,
// kernel.cuh with its headers as one text.
struct KernelSource {
  std::string_view op;
  std::string_view family;  // "x86-64-v3", or "cuda"
  std::span<const std::byte> code;
  std::string_view digest;  // SHA-256 of the code, in hex
};

inline int no_shared_bytes(const Specialization&) { return 0; }

inline std::vector<Specialization> no_alternatives(const Specialization&) { return {}; }

inline std::vector<Specialization> no_gradients(const OpCall&, Target, const Tuning&) { return {}; }

// Of an op no size of a model is a constant of: its kernels follow from a call's options.
inline std::vector<Specialization> no_model_variants(const ModelShape&, DType, Pass, Target,
                                                     const Tuning&) {
  return {};
}

struct Op {
  std::string_view name;
  std::span<const ConstantDef> constants;
  // Stage 2. Throws InvalidArgument.
  void (*check)(const OpCall&);
  // Stage 3. Allocates nothing.
  Specialization (*specialize)(const OpCall&, Target, const Tuning&);
  // Stage 10. kernel.entries follow `entries(pass)`.
  void (*launch)(const LoadedKernel&, const OpCall&, const LaunchSettings&);

  // Entry points of the artifact of a pass.
  std::span<const char* const> (*entries)(Pass, Backend);
  // Most dynamic shared memory that a launch asks for; 0 on the CPU.
  int (*dynamic_shared_bytes)(const Specialization&) = no_shared_bytes;
  // The generic variants that ship with rlk, for one target.
  std::vector<Specialization> (*generic_variants)(Target);
  // The variants that calls of a model's head ask for. Throws InvalidArgument, as such a call
  // would.
  std::vector<Specialization> (*model_variants)(const ModelShape&, DType, Pass, Target,
                                                const Tuning&) = no_model_variants;
  // The template of the op of this name; null where the build has none for the target.
  const KernelSource* (*find_source)(std::string_view name, Target);
  // Those that differ from this one in their tile alone, so that they give the same bits.
  std::vector<Specialization> (*alternatives)(const Specialization&) = no_alternatives;
  // What the gradients of a forward will ask for, as far as its call tells; of any op.
  std::vector<Specialization> (*gradients)(const OpCall&, Target, const Tuning&) = no_gradients;
  std::span<const std::string_view> tile_names = {};
  // What a call takes. The first is the tensor that tells device, stream and framework.
  std::span<const Parameter> parameters = {};
};

}  // namespace rlk::jit
