// SPDX-License-Identifier: Apache-2.0
// Fills the cache before anybody calls: which kernels a model's calls would ask for, and compiling
// those that no layer has, on all cores.
#pragma once

#include "cache/disk_store.hpp"
#include "jit/op.hpp"
#include "jit/specialization.hpp"
#include "jit/tuning_file.hpp"
#include "jit/warm/model_shape.hpp"
#include "runtime/function_ref.hpp"
#include "runtime/settings.hpp"

#include <optional>
#include <string>
#include <vector>

namespace rlk::jit {

struct WarmPlan {
  std::vector<ModelShape> shapes;
  std::vector<const Op*> ops;
  std::vector<Pass> passes;
  std::vector<DType> dtypes;
  std::vector<Target> targets;
  // Forwards that will be differentiated keep something, as the setting saved_mib says.
  bool keep = false;
  std::vector<TuningRecord> tunings;  // of tiles; where there is none, the op's own choice
};

// Every combination, each kernel once.
std::vector<Specialization> kernels_of(const WarmPlan& plan);

enum class WarmOutcome {
  compiled,
  present,    // a layer has it
  failed,     // see problem
  cancelled,  // stopped before it was done
};
std::string_view name(WarmOutcome outcome);

struct WarmResult {
  Specialization kernel;
  WarmOutcome outcome = WarmOutcome::cancelled;
  double compile_ms = 0;
  std::string problem = {};
};

struct WarmOptions {
  Settings settings;
  cache::StoreOptions store;
  std::optional<int> cuda_major;  // compile with NVRTC of this major
  int num_processes = 0;          // 0: one a core, as far as the memory goes
  bool is_reproducible = false;   // leave the times out of what is stored
};

// Compiles and stores; tells each result as it comes. Once `should_stop` says so, what runs is
// cancelled and the rest is not begun. This process must have one thread. Throws Unsupported where
// a target's compiler is missing, Error where there is no folder to store what is compiled.
std::vector<WarmResult> warm(const std::vector<Specialization>& kernels, const WarmOptions& options,
                             runtime::FunctionRef<void(const WarmResult&)> tell,
                             runtime::FunctionRef<bool()> should_stop);

}  // namespace rlk::jit
