// SPDX-License-Identifier: Apache-2.0
// What doctor finds, part by part.
#pragma once

#include "cli/context.hpp"
#include "cli/query/cached_kernel.hpp"
#include "cli/query/kernel_choice.hpp"
#include "jit/compiler.hpp"
#include "jit/nvrtc/nvrtc_compiler.hpp"
#include "jit/specialization.hpp"
#include "runtime/cuda/driver.hpp"

#include <optional>
#include <string>
#include <vector>

namespace rlk::cli {

// warn: works, but not as well as it could. fail: does not work.
enum class State { good, warn, fail };

struct Finding {
  std::string subject;
  State state = State::good;
  std::string text;
  Json details = {};  // for --json: what the text says, as fields
};

using Findings = std::vector<Finding>;

// The variables in force, and those that are ignored.
void examine_settings(const Context& context, Findings& findings);

// Folders, their rights and entries.
void examine_layers(const jit::Layers& layers, cache::DiskStore& store, Policy policy,
                    Findings& findings);

// Processor, LLVM, and what a call would run.
void examine_cpu(const Context& context, cache::DiskStore& store, Findings& findings);

// What there is of CUDA in this process.
struct CudaMachine {
  runtime::cuda::Driver* driver = nullptr;
  std::string why_no_driver;
  bool has_library = false;  // one that was refused, where there is no driver
  jit::NvrtcCompiler& compiler;
};

// Driver, devices, every NVRTC and the one chosen, and what a call would run. Initializes the
// driver, to list its devices, but makes no context.
void examine_cuda(const Context& context, cache::DiskStore& store, const CudaMachine& machine,
                  Findings& findings);

// Calls a generic kernel of each backend that calls were found to run on, on each card, and makes
// failed findings of those that do not give what they should.
void call_kernels(const Context& context, cache::DiskStore& store, const CudaMachine& machine,
                  Findings& findings);

// Whether the kernels that a process means to load are there, and whether its driver takes them:
// those of the models, else those of the layers' manifests.
void examine_readiness(const Context& context, const jit::Layers& layers, cache::DiskStore& store,
                       const CudaMachine& machine, const KernelChoice& choice, Findings& findings);

// What a call for a target would run: a specialized kernel, a generic one, or nothing. `compiler`
// is one that works, or null.
Finding examine_calls(const Context& context, cache::DiskStore& store, std::string subject,
                      Target target, const jit::Compiler* compiler);

std::vector<jit::Specialization> generic_variants(Target target);

}  // namespace rlk::cli
