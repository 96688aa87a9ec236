// SPDX-License-Identifier: Apache-2.0
// What an op tells the dispatcher: its constants and one function a stage.
#pragma once

#include "jit/specialization.hpp"
#include "jit/tuning.hpp"
#include "jit/warm/model_shape.hpp"
#include "runtime/loaded_kernel.hpp"
#include "runtime/tensor.hpp"
#include "runtime/workspace.hpp"

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
};

// What settings tell a launch. Results do not depend on it.
struct LaunchSettings {
  std::int64_t workspace_bytes = std::int64_t{512} << 20;  // CUDA: of a backward, about
  int max_sms = 0;             // CUDA: that a persistent kernel takes, 0: all
  bool validate_sync = false;  // CUDA: look at the values of a call before its launch
};

// In the text form: an option that a kernel, not generic in all else, takes as an argument.
inline constexpr std::string_view k_any = "any";

// One constant of a template. Two neighbours of one label are shown as one: tile=14x2.
struct ConstantDef {
  std::string_view label;                        // in the text form: "V"
  const char* symbol;                            // in the template: "kV"
  std::span<const std::string_view> words = {};  // names of the values 0, 1, ...; empty: a number
  bool may_be_run_time = true;                   // false: constant in the generic variant too

  // An option: off (0) is no word and is left out of the text form.
  constexpr bool is_option() const { return !words.empty() && words[0].empty(); }
};

inline std::vector<Specialization> no_alternatives(const Specialization&) { return {}; }

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
  int (*dynamic_shared_bytes)(const Specialization&);
  // The generic variants that ship with rlk, for one target.
  std::vector<Specialization> (*generic_variants)(Target);
  // The variants that calls of a model's head ask for. Throws InvalidArgument, as such a call
  // would.
  std::vector<Specialization> (*model_variants)(const ModelShape&, DType, Pass, Target,
                                                const Tuning&);
  // Those that differ from this one in their tile alone, so that they give the same bits.
  std::vector<Specialization> (*alternatives)(const Specialization&) = no_alternatives;
  std::span<const std::string_view> tile_names = {};
};

}  // namespace rlk::jit
