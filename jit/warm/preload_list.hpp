// SPDX-License-Identifier: Apache-2.0
// Which kernels a process means to load ahead: those of its layers' manifests, or those it names.
#pragma once

#include "jit/specialization.hpp"
#include "jit/tuning.hpp"
#include "runtime/function_ref.hpp"

#include <span>
#include <string>
#include <vector>

namespace rlk::jit {

// Of the manifests in these folders, each once; names that this build does not know are left out,
// as are other targets' kernels.
std::vector<Specialization> manifest_kernels(std::span<const std::string> folders, Target target,
                                             Ops ops);

// One thing that a process asks for, and the sets of kernels any one of which will do.
struct Wanted {
  std::vector<std::vector<Specialization>> any_of;  // nor it nor a set is empty
};

// Which tiles calls of an op's pass take.
using TuningOf = runtime::FunctionRef<Tuning(const Op&, Pass)>;

// `word` is a kernel's name, a trace of RLK_TRACE, or a model: a config.json, a folder with one, or
// V=..,D=..; of a model, each op and pass is wanted in any dtype, and with `keep` the forwards that
// keep something for a backward. Throws InvalidArgument.
std::vector<Wanted> wanted_kernels(const std::string& word, Target target, TuningOf tuning_of,
                                   Ops ops, bool keep);

}  // namespace rlk::jit
